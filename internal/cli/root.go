package cli

import (
	"encoding/json"
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

// FlagsFile is the flag of the file of settings of a Root.
const FlagsFile = "flags-file"

// Root makes the root of a command tree with some commands, and with the command version. Each flag of a command that is not given has the
// value of a variable of the environment, if there is one (--max-proxies of holdfast-mesh that of HOLDFAST_MESH_MAX_PROXIES), or else of a key
// of the file of --flags-file. foreign is that of Settings.
func Root(program, short, long, version string, stdout, stderr io.Writer, foreign func(string) bool, commands ...*cobra.Command) *cobra.Command {
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
	root.SetFlagErrorFunc(FlagError)
	commands = append(commands, newVersion(program, version, stdout))
	root.AddCommand(commands...)
	root.PersistentFlags().String(FlagsFile, "", "YAML `FILE` of settings; a key is the name of a flag, without the dashes. All commands may use the same file")
	keys := make(map[string]bool)
	for _, c := range commands {
		CompleteChoices(c)
		c.Flags().VisitAll(func(f *pflag.Flag) { keys[f.Name] = true })
	}
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		settings := Settings{Program: program, Flag: FlagsFile, Environ: os.Environ(), Keys: keys, Foreign: foreign}
		warnings, err := settings.Apply(cmd.Flags())
		for _, warning := range warnings {
			_, _ = fmt.Fprintf(stderr, "%s: warning: %s\n", program, warning)
		}
		return err
	}
	prefix := Prefix(program)
	settings := SettingsHelp(prefix, FlagsFile) + "\n\n" + ListsHelp + "\n\n" + exitHelp
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		switch {
		case !cmd.HasParent():
			WriteRootHelp(stdout, root, commands, settings)
		case slices.Contains(commands, cmd):
			usage := cmd.CommandPath() + " [flags]"
			if _, arguments, ok := strings.Cut(cmd.Use, " "); ok {
				usage += " " + arguments
			}
			WriteHelp(stdout, cmd, usage, sections(cmd), root.PersistentFlags().Lookup(FlagsFile), prefix, settings)
		default: // a shell's completion
			_, _ = fmt.Fprintf(stdout, "%s\n", strings.TrimSpace(cmd.Long))
		}
	})
	return root
}

func newVersion(program, version string, stdout io.Writer) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "version", Short: "show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if output == "text" {
				return printVersion(stdout, program, version)
			}
			e := json.NewEncoder(stdout)
			e.SetIndent("", "  ")
			return Failed(e.Encode(struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{version, runtime.Version()}))
		},
	}
	AddOutput(c.Flags(), &output, "text", "json")
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
