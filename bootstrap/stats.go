package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// RequiredStats returns the stats that are included regardless of Stats.Include: those needed to start, monitor and drain
// an Envoy.
func RequiredStats() []Match {
	return []Match{
		{Prefix, "cluster." + ClusterName + "."}, {Prefix, "cluster_manager."}, {Prefix, "listener_manager."}, {Prefix, "server."},
		{Suffix, "downstream_cx_active"}, {Suffix, "downstream_rq_active"},
	}
}

func addStats(b *bootstrapv3.Bootstrap, cfg Config) error {
	s := cfg.Stats
	if s.FlushInterval != 0 {
		b.StatsFlushInterval = durationpb.New(s.FlushInterval) // Validate checks the range
	}
	config := &metricsv3.StatsConfig{}
	if s.NoDefaultTags {
		config.UseAllDefaultTags = wrapperspb.Bool(false)
	}
	for _, tag := range s.Tags {
		specifier, err := tag.specifier()
		if err != nil {
			return fmt.Errorf("--stats-tag %q: %w", tag.Name, err)
		}
		config.StatsTags = append(config.StatsTags, specifier)
	}
	matcher, err := s.matcher()
	if err != nil {
		return err
	}
	config.StatsMatcher = matcher
	for _, buckets := range s.Buckets {
		settings, err := buckets.settings()
		if err != nil {
			return fmt.Errorf("--histogram-buckets: %w", err)
		}
		config.HistogramBucketSettings = append(config.HistogramBucketSettings, settings)
	}
	if s.NoDefaultTags || len(s.Tags) > 0 || matcher != nil || len(s.Buckets) > 0 {
		b.StatsConfig = config
	}
	return nil
}

func (t Tag) specifier() (*metricsv3.TagSpecifier, error) {
	switch {
	case t.Name == "":
		return nil, errors.New("has no name")
	case !utf8.ValidString(t.Name) || !utf8.ValidString(t.Regex) || !utf8.ValidString(t.Fixed):
		return nil, errors.New("is not valid UTF-8")
	case (t.Regex == "") == (t.Fixed == ""):
		return nil, errors.New("needs either a regular expression or a fixed value")
	case t.Regex != "":
		return &metricsv3.TagSpecifier{TagName: t.Name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: t.Regex}}, nil
	default:
		return &metricsv3.TagSpecifier{TagName: t.Name, TagValue: &metricsv3.TagSpecifier_FixedValue{FixedValue: t.Fixed}}, nil
	}
}

// matcher returns nil if all stats are included.
func (s Stats) matcher() (*metricsv3.StatsMatcher, error) {
	switch {
	case len(s.Include) > 0 && len(s.Exclude) > 0:
		return nil, errors.New("--stats-include and --stats-exclude: Envoy accepts only one of them")
	case len(s.Include) > 0:
		list, err := matchers("--stats-include", append(slices.Clone(s.Include), RequiredStats()...))
		return &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}, err
	case len(s.Exclude) > 0:
		list, err := matchers("--stats-exclude", s.Exclude)
		return &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_ExclusionList{ExclusionList: list}}, err
	}
	return nil, nil
}

func matchers(flag string, all []Match) (*matcherv3.ListStringMatcher, error) {
	list := &matcherv3.ListStringMatcher{}
	for _, m := range all {
		matcher, err := m.matcher()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		list.Patterns = append(list.Patterns, matcher)
	}
	return list, nil
}

func (m Match) matcher() (*matcherv3.StringMatcher, error) {
	if m.Value == "" || !utf8.ValidString(m.Value) {
		return nil, fmt.Errorf("%s %q is empty or not valid UTF-8", m.Kind, m.Value)
	}
	switch m.Kind {
	case Prefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Value}}, nil
	case Suffix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: m.Value}}, nil
	case Regex:
		if _, err := regexp.Compile(m.Value); err != nil { // the syntax of package regexp is RE2
			return nil, fmt.Errorf("regex %q: %w", m.Value, err)
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: m.Value}}}, nil
	default:
		return nil, fmt.Errorf("%q is none of %s, %s and %s", m.Kind, Prefix, Suffix, Regex)
	}
}

func (b Buckets) settings() (*metricsv3.HistogramBucketSettings, error) {
	match, err := b.Match.matcher()
	if err != nil {
		return nil, err
	}
	bounds := slices.Clone(b.Bounds)
	slices.SortFunc(bounds, cmp.Compare)
	for i, bound := range bounds {
		if math.IsNaN(bound) || math.IsInf(bound, 0) || bound <= 0 || (i > 0 && bound == bounds[i-1]) {
			return nil, fmt.Errorf("%s %q: bound %v is not positive, or a duplicate", b.Match.Kind, b.Match.Value, bound)
		}
	}
	if len(bounds) == 0 {
		return nil, fmt.Errorf("%s %q: no bounds", b.Match.Kind, b.Match.Value)
	}
	return &metricsv3.HistogramBucketSettings{Match: match, Buckets: bounds}, nil
}
