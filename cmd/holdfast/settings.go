package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/environ"
	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

const (
	configFlag = "config"
	envPrefix  = environ.Prefix
)

const listsHelp = `Repeatable flags accept several values: in a variable, separated by commas, or one per line
if it contains line breaks; in the file, as a list. NAME=VALUE pairs may also be a JSON
object in the variable, and a mapping in the file.`

// envName returns the variable of a flag.
func envName(flag string) string {
	return cli.Variable(envPrefix, flag)
}

// commandLineOnly marks a flag as one that neither a variable nor the file sets, because these have a flag of the same
// name of another command in mind.
const commandLineOnly = "command line only"

func onCommandLineOnly(f *pflag.Flag) bool { return f.Annotations[commandLineOnly] != nil }

// fromFile marks a flag that the file of --config has set.
const fromFile = "from file"

func inFile(f *pflag.Flag) bool { return f.Annotations[fromFile] != nil }

// applySettings sets every flag that the command line did not set from the environment or else from
// the file of --config. keys are the flags of all commands. Settings of other commands are
// ignored. A key that is no flag of any command is an error. A variable that is none causes a
// warning only, because other programs may set variables with this prefix.
func applySettings(flags *pflag.FlagSet, environ []string, keys map[string]bool) (warnings []string, err error) {
	vars := make(map[string]string)
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, envPrefix) {
			vars[name] = value
		}
	}
	warnings = unknownVars(vars, keys)
	// The order of flags is fixed, so the same of several errors is always reported.
	config := flags.Lookup(configFlag)
	if value, ok := vars[envName(configFlag)]; ok && !config.Changed {
		if err := config.Value.Set(value); err != nil {
			return nil, err
		}
	}
	file, err := readFile(config.Value.String(), keys)
	if err != nil {
		return nil, err
	}
	apply := func(f *pflag.Flag) {
		if err != nil || f.Changed || f.Name == configFlag || onCommandLineOnly(f) {
			return
		}
		if value, ok := vars[envName(f.Name)]; ok {
			f.Changed = true
			if setErr := setText(f, value); setErr != nil {
				err = fmt.Errorf("%s: %w", envName(f.Name), setErr)
			}
		} else if value, ok := file[f.Name]; ok {
			f.Changed = true
			if f.Annotations == nil {
				f.Annotations = make(map[string][]string)
			}
			f.Annotations[fromFile] = []string{}
			if setErr := setYAML(f, value); setErr != nil {
				err = fmt.Errorf("%s: %s: %w", config.Value, f.Name, setErr)
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[onlyWith] == nil {
			apply(f)
		}
	})
	// Only now it is known which flags of other commands count.
	flags.VisitAll(func(f *pflag.Flag) {
		switch from := f.Annotations[onlyWith]; {
		case from == nil || err != nil:
		case flags.Lookup(from[0]).Value.String() == "true":
			apply(f)
		case f.Changed:
			err = fmt.Errorf("unknown flag: --%s: it is a flag of `holdfast %s`; this command takes it with --%s", f.Name, from[1], from[0])
		}
	})
	return warnings, err
}

// unknownVars warns of variables that look like settings and are none, except those that Kubernetes
// sets for a Service called holdfast, and metadata of the node.
func unknownVars(vars map[string]string, keys map[string]bool) []string {
	known := []string{strings.TrimPrefix(envName(configFlag), envPrefix)}
	for key := range keys {
		known = append(known, strings.TrimPrefix(envName(key), envPrefix))
	}
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		name = strings.TrimPrefix(name, envPrefix)
		fromService := strings.HasPrefix(name, "SERVICE_") || strings.HasPrefix(name, "PORT")
		metadata := strings.HasPrefix(name, "META_")
		other := strings.HasPrefix(name, "MESH_") || strings.HasPrefix(name, "INJECTOR_") // settings of these programs
		if !slices.Contains(known, name) && !fromService && !metadata && !other {
			warnings = append(warnings, fmt.Sprintf("environment variable %s%s is not a setting%s", envPrefix, name, nearest.Question(envPrefix, name, known)))
		}
	}
	return warnings
}

// readFile returns the settings in a YAML file, by key; path may be "".
func readFile(path string, keys map[string]bool) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	data, err := userfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", configFlag, err)
	}
	return parseSettings(path, data, keys)
}

// parseSettings is readFile for the content of a file; path is for errors.
func parseSettings(path string, data []byte, keys map[string]bool) (settings map[string]any, err error) {
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
		return nil, errors.New("want a mapping of flag names to values, one a line, such as `socket: /run/holdfast/xds.sock`")
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

// setText sets a flag from a variable.
func setText(f *pflag.Flag, text string) error {
	if pairs, ok := f.Value.(mapping); ok && strings.HasPrefix(strings.TrimSpace(text), "{") {
		tree, err := parseJSON(text)
		if err != nil {
			return err
		}
		return pairs.setMap(tree.(map[string]any)) // the text begins with {
	}
	if _, ok := f.Value.(multiple); !ok {
		return set(f, text)
	}
	separator := ","
	if strings.Contains(text, "\n") {
		separator = "\n"
	}
	for value := range strings.SplitSeq(text, separator) {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if err := set(f, value); err != nil {
			return err
		}
	}
	return nil
}

// setYAML sets a flag from a value of the file. A number or a boolean is an error where text is
// wanted, because YAML reads 0660 as 432 and 1.10 as 1.1.
func setYAML(f *pflag.Flag, value any) error {
	switch value := value.(type) {
	case []any:
		if _, ok := f.Value.(multiple); !ok {
			return errors.New("want one value, not a list")
		}
		for _, element := range value {
			if object, ok := element.(map[string]any); ok {
				if err := setYAML(f, object); err != nil {
					return err
				}
				continue
			}
			text, ok := element.(string)
			if !ok {
				return fmt.Errorf("want a list of texts: put %v into quotes", element)
			}
			if err := set(f, text); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		pairs, ok := f.Value.(mapping)
		if !ok {
			return errors.New("want a value, not a mapping")
		}
		return pairs.setMap(value)
	case string:
		return set(f, value)
	case bool:
		if f.Value.Type() == "bool" {
			return set(f, fmt.Sprint(value))
		}
	case json.Number:
		switch f.Value.Type() {
		case "int":
			return set(f, value.String())
		case "duration":
			return fmt.Errorf("%s: want a duration with its unit, such as 500ms, 5s or 10m", value)
		case octalKind:
			return errors.New("put the permissions into quotes, such as '0660': YAML reads them as another number without")
		}
	case nil:
		return errors.New("has no value: write '' for the empty value")
	}
	return fmt.Errorf("want text: put %v into quotes", value)
}
