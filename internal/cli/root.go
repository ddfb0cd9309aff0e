package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/nearest"
)

// Root makes the root of a command tree with some commands, and with the command version. Each flag of a command that is not given has the
// value of a variable of the environment, if there is one: --max-proxies of holdfast-mesh that of HOLDFAST_MESH_MAX_PROXIES.
func Root(program, short, long, version string, stdout, stderr io.Writer, commands ...*cobra.Command) *cobra.Command {
	var asked bool
	root := &cobra.Command{
		Use: program, Short: short, Long: long,
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			if asked {
				return printVersion(stdout, program, version)
			}
			return fmt.Errorf("no command: `%s help` lists them", program)
		},
	}
	// cobra's own flag has words of its own, and with a template for others each program is a fifth larger: text/template calls methods by
	// name, so that the linker keeps all.
	root.Flags().BoolVar(&asked, "version", false, "show the version")
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return UnknownCommand(root, args[0])
		}
		return nil
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w%s (`%s --help` lists the flags)", err, MeantFlag(cmd, err), cmd.CommandPath())
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		warnings, err := fromVariables(root, cmd, os.Environ())
		for _, warning := range warnings {
			_, _ = fmt.Fprintf(stderr, "%s: warning: %s\n", program, warning)
		}
		return err
	}
	root.AddCommand(append(commands, newVersion(program, version, stdout))...)
	return root
}

func newVersion(program, version string, stdout io.Writer) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "version", Short: "show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "text":
				return printVersion(stdout, program, version)
			case "json":
				e := json.NewEncoder(stdout)
				e.SetIndent("", "  ")
				return Failed(e.Encode(struct {
					Version string `json:"version"`
					Go      string `json:"go"`
				}{version, runtime.Version()}))
			}
			return fmt.Errorf("--output %q: want text or json", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT`: text or json")
	return c
}

func printVersion(w io.Writer, program, version string) error {
	_, err := fmt.Fprintf(w, "%s %s\n", program, version)
	return Failed(err)
}

// UnknownCommand returns the error of a command that there is not, with the one that was probably meant.
func UnknownCommand(root *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q%s (`%s help` lists them)", name, nearest.Question("", name, Commands(root)), root.Name())
}

// Commands returns the names of the commands of a root that are not hidden.
func Commands(root *cobra.Command) []string {
	var all []string
	for _, c := range root.Commands() {
		if !c.Hidden {
			all = append(all, c.Name())
		}
	}
	return all
}

// MeantFlag returns ", did you mean --…?" if err is that of a flag that a command does not have, and another one is near; else "".
func MeantFlag(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return nearest.Question("--", unknown.GetSpecifiedName(), known)
}

// Variable returns the name of the variable of a flag.
func Variable(prefix, flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromVariables gives the flags of a command that were not given on the command line the values of variables, with commas between those of
// a list; an empty variable is none. The warnings are about variables that no command has a flag for. Not among them are those that
// Kubernetes sets for a Service with the name of the program, and that of the systemd unit, which has a command line.
func fromVariables(root, cmd *cobra.Command, environ []string) (warnings []string, err error) {
	prefix := Variable("", root.Name()) + "_"
	vars := make(map[string]string)
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, prefix) && value != "" {
			vars[name] = value
		}
	}
	if len(vars) == 0 {
		return nil, nil
	}
	var known []string
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, Variable(prefix, f.Name)) })
	}
	for name := range vars {
		rest := strings.TrimPrefix(name, prefix)
		if rest != "FLAGS" && !strings.HasPrefix(rest, "SERVICE_") && !strings.HasPrefix(rest, "PORT") && !slices.Contains(known, name) {
			warnings = append(warnings, fmt.Sprintf("environment variable %s is not a flag%s", name, nearest.Question("", name, known)))
		}
	}
	slices.Sort(warnings)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value, set := vars[Variable(prefix, f.Name)]
		if !set || f.Changed || err != nil || f.Name == "help" || f.Name == "version" {
			return
		}
		if list, is := f.Value.(pflag.SliceValue); is {
			err = list.Replace(strings.Split(value, ","))
		} else {
			err = f.Value.Set(value)
		}
		if err != nil {
			err = fmt.Errorf("environment variable %s=%q: %w", Variable(prefix, f.Name), value, err)
			return
		}
		f.Changed = true
	})
	return warnings, err
}
