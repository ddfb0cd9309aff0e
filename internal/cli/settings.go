package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// Annotations of flags.
const (
	// CommandLineOnly marks a flag that neither a variable nor the file sets, because these have a flag of the same name of
	// another command in mind.
	CommandLineOnly = "command line only"
	// OnlyWith marks a flag that is one of another command: its values are the name of the boolean flag without which it is an
	// error on the command line and ignored elsewhere, and the name of the other command.
	OnlyWith = "only with"
	fromFile = "from file"
)

// OnCommandLineOnly reports whether a flag is marked as CommandLineOnly.
func OnCommandLineOnly(f *pflag.Flag) bool { return f.Annotations[CommandLineOnly] != nil }

// FromFile reports whether Apply has set a flag from the file.
func FromFile(f *pflag.Flag) bool { return f.Annotations[fromFile] != nil }

// Repeatable is a flag of our own that may be given several times. Lists of pflag are so, too.
type Repeatable interface{ Repeatable() }

// Mapping is a Repeatable that may also be given as an object. Numbers in it are json.Number.
type Mapping interface {
	Repeatable
	SetMap(object map[string]any) error
}

// OctalKind is the type of a flag of permissions, which YAML would read as decimal numbers.
const OctalKind = "OCTAL"

// Settings are where flags get values from that the command line does not give: variables of the environment, and then a
// YAML file whose keys are names of flags. All commands of a program may use the same file and variables: those of other
// commands are ignored.
type Settings struct {
	Program string // such as holdfast-mesh, whose variables begin with HOLDFAST_MESH_
	Flag    string // the name of the flag of the file
	Environ []string
	Keys    map[string]bool // names of the flags of all commands
	// Foreign reports whether a variable, which is given without the prefix, is none of this program's. Those that Kubernetes sets
	// for a Service with the name of the program need not be named. Nil: none.
	Foreign func(name string) bool
}

// Prefix returns that with which the variables of a program begin.
func Prefix(program string) string { return Variable("", program) + "_" }

// Variable returns the name of the variable of a flag.
func Variable(prefix, flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Apply sets every flag that the command line did not set from its variable or else from the file. A key that is no flag of
// any command is an error. A variable that is none causes a warning only, because other programs may set variables with this
// prefix. A flag of the file itself that is not there is no error.
func (s Settings) Apply(flags *pflag.FlagSet) (warnings []string, err error) {
	prefix := Prefix(s.Program)
	vars := make(map[string]string)
	for _, pair := range s.Environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, prefix) {
			vars[name] = value
		}
	}
	warnings = s.unknown(prefix, vars)
	// The order of flags is fixed, so the same of several errors is always reported.
	var path string
	if at := flags.Lookup(s.Flag); at != nil {
		if value, ok := vars[Variable(prefix, s.Flag)]; ok && !at.Changed {
			if err := at.Value.Set(value); err != nil {
				return nil, err
			}
		}
		path = at.Value.String()
	}
	file, err := s.read(path)
	if err != nil {
		return nil, err
	}
	apply := func(f *pflag.Flag) {
		if err != nil || f.Changed || f.Name == s.Flag || f.Name == "help" || f.Name == "version" || OnCommandLineOnly(f) {
			return
		}
		if value, ok := vars[Variable(prefix, f.Name)]; ok {
			f.Changed = true
			if setErr := SetText(f, value); setErr != nil {
				err = fmt.Errorf("%s: %w", Variable(prefix, f.Name), setErr)
			}
		} else if value, ok := file[f.Name]; ok {
			f.Changed = true
			if f.Annotations == nil {
				f.Annotations = make(map[string][]string)
			}
			f.Annotations[fromFile] = []string{}
			if setErr := SetYAML(f, value); setErr != nil {
				err = fmt.Errorf("%s: %s: %w", path, f.Name, setErr)
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[OnlyWith] == nil {
			apply(f)
		}
	})
	// Only now it is known which flags of other commands count.
	flags.VisitAll(func(f *pflag.Flag) {
		switch from := f.Annotations[OnlyWith]; {
		case from == nil || err != nil:
		case flags.Lookup(from[0]).Value.String() == "true":
			apply(f)
		case f.Changed:
			err = fmt.Errorf("unknown flag: --%s: it is a flag of `%s %s`; this command takes it with --%s", f.Name, s.Program, from[1], from[0])
		}
	})
	return warnings, err
}

// unknown warns of variables that look like settings and are none.
func (s Settings) unknown(prefix string, vars map[string]string) (warnings []string) {
	known := []string{Variable("", s.Flag)}
	for key := range s.Keys {
		known = append(known, Variable("", key))
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		name = strings.TrimPrefix(name, prefix)
		ofKubernetes := strings.HasPrefix(name, "SERVICE_") || name == "PORT" || strings.HasPrefix(name, "PORT_")
		if !slices.Contains(known, name) && !ofKubernetes && (s.Foreign == nil || !s.Foreign(name)) {
			warnings = append(warnings, fmt.Sprintf("environment variable %s%s is not a setting%s", prefix, name, nearest.Question(prefix, name, known)))
		}
	}
	return warnings
}

// read returns the settings in a YAML file, by key; path may be "".
func (s Settings) read(path string) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	data, err := userfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", s.Flag, err)
	}
	return ParseSettings(path, data, s.Keys)
}

// ParseSettings returns the settings in the content of a file, by key, of which all must be in keys; path is for errors, "" for none.
func ParseSettings(path string, data []byte, keys map[string]bool) (settings map[string]any, err error) {
	defer func() {
		if err != nil && path != "" {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	if line := secondDocument(data); line > 0 {
		return nil, fmt.Errorf("line %d: a second YAML document begins: want one", line)
	}
	tree, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	decoder := json.NewDecoder(bytes.NewReader(tree))
	decoder.UseNumber()
	if err := decoder.Decode(&settings); err != nil {
		return nil, errors.New("want a mapping of flag names to values, one a line, such as `log-level: debug`")
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if !keys[key] {
			return nil, fmt.Errorf("unknown key %q%s", key, nearest.Question("", key, slices.Collect(maps.Keys(keys))))
		}
	}
	return settings, nil
}

// secondDocument returns the line with which a second YAML document begins, 0 for none.
func secondDocument(data []byte) int {
	content, number := false, 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimRight(line, "\r\n\t ")
		marker := bytes.Equal(line, []byte("---")) || bytes.HasPrefix(line, []byte("--- "))
		if marker && content {
			return number
		}
		// Comments, directives and the first marker are no content.
		content = content || marker || len(line) > 0 && line[0] != '#' && line[0] != '%'
	}
	return 0
}

// oneLine returns an error of the YAML decoder in one line, without its heading.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	var parts []string
	for line := range strings.Lines(text) {
		parts = append(parts, strings.TrimSpace(line))
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "already set in map", "is given twice")
}

// SetText sets a flag from a variable: a list from texts between commas, or between line breaks if it has some; a Mapping also
// from a JSON object.
func SetText(f *pflag.Flag, text string) error {
	if pairs, ok := f.Value.(Mapping); ok && strings.HasPrefix(strings.TrimSpace(text), "{") {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var object map[string]any
		if err := decoder.Decode(&object); err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		if decoder.More() {
			return errors.New("more than one JSON value")
		}
		return pairs.SetMap(object)
	}
	if !repeats(f) {
		return set(f, text)
	}
	separator := ","
	if strings.Contains(text, "\n") {
		separator = "\n"
	}
	values := []string{}
	for value := range strings.SplitSeq(text, separator) {
		if value = strings.TrimSpace(value); value != "" {
			values = append(values, value)
		}
	}
	return setList(f, values)
}

// repeats reports whether a flag may be given several times.
func repeats(f *pflag.Flag) bool {
	_, own := f.Value.(Repeatable)
	_, list := f.Value.(pflag.SliceValue)
	return own || list
}

// setList sets a flag that repeats. The values replace a default.
func setList(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	for _, value := range values {
		if err := set(f, value); err != nil {
			return err
		}
	}
	return nil
}

// SetYAML sets a flag from a value of a file. A number or a boolean is an error where text is wanted, because YAML reads 0660
// as 432 and 1.10 as 1.1.
func SetYAML(f *pflag.Flag, value any) error {
	switch value := value.(type) {
	case []any:
		if !repeats(f) {
			return errors.New("want one value, not a list")
		}
		var texts []string
		for _, element := range value {
			switch element := element.(type) {
			case map[string]any:
				if err := SetYAML(f, element); err != nil {
					return err
				}
			case string:
				texts = append(texts, element)
			default:
				return fmt.Errorf("want a list of texts: put %v into quotes", element)
			}
		}
		return setList(f, texts)
	case map[string]any:
		pairs, ok := f.Value.(Mapping)
		if !ok {
			return errors.New("want a value, not a mapping")
		}
		return pairs.SetMap(value)
	case string:
		if repeats(f) {
			return setList(f, []string{value})
		}
		return set(f, value)
	case bool:
		if f.Value.Type() == "bool" {
			return set(f, fmt.Sprint(value))
		}
	case json.Number:
		switch f.Value.Type() {
		case "int", "int64":
			return set(f, value.String())
		case "duration":
			return fmt.Errorf("%s: want a duration with its unit, such as 500ms, 5s or 10m", value)
		case OctalKind:
			return errors.New("put the permissions into quotes, such as '0660': YAML reads them as another number without")
		}
	case nil:
		return errors.New("has no value: write '' for the empty value")
	}
	return fmt.Errorf("want text: put %v into quotes", value)
}

// set sets a flag from text.
func set(f *pflag.Flag, text string) error {
	if err := f.Value.Set(text); err != nil {
		return plainValue(f, text, err)
	}
	return nil
}

// plainValue words the errors of pflag's own types. Flags of our own types word theirs.
func plainValue(f *pflag.Flag, value string, err error) error {
	_, number := errors.AsType[*strconv.NumError](err)
	switch kind := f.Value.Type(); {
	case kind == "duration" && strings.HasPrefix(err.Error(), "time: "):
		return fmt.Errorf("%q: want a duration with its unit, such as 500ms, 5s or 10m", value)
	case kind == "bool" && number:
		return fmt.Errorf("%q: want true or false", value)
	case number && errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%q: the number is too large", value)
	case number:
		return fmt.Errorf("%q: want a whole number, such as 100", value)
	}
	return err
}

// FlagError words an error about a flag of the command line, with the flag that was probably meant.
func FlagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, plainValue(invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap()))
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return fmt.Errorf("%w%s (`%s --help` lists the flags)", err, nearest.Question("--", unknown.GetSpecifiedName(), known), cmd.CommandPath())
}
