package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
)

// process is the environment of a command.
type process struct {
	stdout, stderr io.Writer
	stdin          io.Reader // nil: that of the process
	environ        []string
	// hurry has a value when a second signal requests an immediate end. signals are the signals
	// for Envoy. Both may be nil.
	hurry   <-chan struct{}
	signals <-chan os.Signal
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, p process, args []string) int {
	root := newRoot(p)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if code, ok := exitCode(err); ok {
		return code
	}
	return cli.Exit(p.stderr, "holdfast", err)
}

// newRoot makes the command tree.
func newRoot(p process) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "keep Envoy configured when its control plane does not answer",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked, _ := cmd.Flags().GetBool("version"); asked {
				return printVersion(p.stdout, "table")
			}
			if len(args) == 0 {
				return errors.New("no command: `holdfast help` lists them")
			}
			return cli.UnknownCommand(cmd, args[0])
		},
	}
	root.Flags().BoolP("version", "v", false, "show versions, as `holdfast version` does")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(cli.FlagError)
	commands := []*command{
		newBootstrap(p), newRun(p), newControlPlane(p), newStatus(), newPage(), newExplain(), newEvents(), newHistory(), newDiff(), newDump(), newExport(),
		newRehearse(p), newShadow(p), newFreeze(), newRollback(),
		newAction("drain", "drain Envoy's connections (use as preStop hook)", drainLong),
		newAction("undrain", "undo a drain", undrainLong),
		newResume(),
		newWait(), newLogLevel(), newInject(p), newUninject(), newVersion(),
	}
	keys := make(map[string]bool) // of all commands: one file serves them all
	for _, c := range commands {
		c.visitFlags(func(f *pflag.Flag) { keys[f.Name] = true })
	}
	var listed []*cobra.Command
	for _, c := range commands {
		c.finish(p, keys)
		listed = append(listed, c.Command)
	}
	root.AddCommand(listed...)
	completion(root)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if cmd.HasParent() && cmd.Long != "" {
			_, _ = fmt.Fprintf(p.stdout, "%s\n", strings.TrimSpace(cmd.Long)) // a shell's completion
			return
		}
		cli.WriteRootHelp(p.stdout, root, listed, cli.SettingsHelp(envPrefix, configFlag)+"\n\n"+exitHelp)
	})
	root.SetHelpCommand(newHelp(root))
	return root
}

// completion adds the command that writes the completion script of a shell.
func completion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(cmd *cobra.Command, args []string) error {
				want := strings.Join(cli.Commands(cmd), ", ")
				if len(args) > 0 {
					return fmt.Errorf("completion: unknown shell %q: want one of %s", args[0], want)
				}
				return fmt.Errorf("completion: name a shell: %s", want)
			}
		}
	}
}

// newHelp makes `holdfast help [COMMAND]`.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "help",
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return root.Help()
			}
			for _, c := range root.Commands() {
				if c.Name() == args[0] {
					return c.Help()
				}
			}
			return cli.UnknownCommand(root, args[0])
		},
	}
}

// headerFlag returns the name of a given flag of headers, "" for none.
func headerFlag(flags *pflag.FlagSet) (name string) {
	flags.Visit(func(f *pflag.Flag) {
		if strings.HasSuffix(f.Name, "-header") {
			name = f.Name
		}
	})
	return name
}

// command is a command whose flags are grouped in sections.
type command struct {
	*cobra.Command
	sections []*pflag.FlagSet // each has its title as its name
	// borrowed are flags of another command; nil for none. See borrow.
	borrowed *pflag.FlagSet
	// takesChild is set if another command line, child, may follow --.
	takesChild bool
	child      []string
	// takesArgument is set if one argument may be given, argument.
	takesArgument bool
	argument      string
	// takesArguments is set if any number of arguments may be given, arguments.
	takesArguments bool
	arguments      []string
	// run is called with warnings about the settings, after the flags are set.
	run func(ctx context.Context, warnings []string) error
}

// newCommand makes a command without flags.
func newCommand(name, short, long, example string) *command {
	return &command{Command: &cobra.Command{
		Use: name, Short: short, Long: long, Example: example,
		DisableFlagsInUseLine: true,
	}}
}

// takes lets a command have one argument, which usage describes.
func (c *command) takes(usage string) {
	c.takesArgument = true
	c.Use += " " + usage
}

// takesMany lets a command have any number of arguments, which usage describes.
func (c *command) takesMany(usage string, complete completer) {
	c.takesArguments = true
	c.Use += " " + usage
	c.ValidArgsFunction = complete
}

// section adds a section and returns its flags.
func (c *command) section(title string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	c.sections = append(c.sections, flags)
	return flags
}

// visitFlags visits the flags that are also settings.
func (c *command) visitFlags(visit func(*pflag.Flag)) {
	for _, s := range c.sections {
		s.VisitAll(visit)
	}
}

// given reports whether a flag was set by the command line, a variable or the file of settings.
func (c *command) given(name string) (set bool) {
	c.visitFlags(func(f *pflag.Flag) { set = set || f.Name == name && f.Changed })
	return set
}

// finish adds --config, the help and the parsing that all commands share.
func (c *command) finish(p process, keys map[string]bool) {
	c.SetHelpFunc(func(*cobra.Command, []string) { c.writeHelp(p.stdout) })
	c.visitFlags(c.Flags().AddFlag)
	c.Flags().AddFlagSet(c.borrowed)
	c.completeFlags()
	c.Flags().String(configFlag, "", "YAML `FILE` of settings; a key is the name of a flag, without the dashes. All commands may use the same file")
	c.Args = func(cmd *cobra.Command, args []string) error {
		if c.takesChild && cmd.ArgsLenAtDash() == 0 {
			if len(args) == 0 {
				return errors.New("the command after -- is missing, such as -- envoy -c envoy.yaml")
			}
			c.child = args
			return nil
		}
		if c.takesArguments {
			c.arguments = args
			return nil
		}
		if c.takesArgument && len(args) == 1 {
			c.argument = args[0]
			return nil
		}
		if c.takesArgument && len(args) > 1 {
			return fmt.Errorf("%d arguments are too many: `%s` takes one; put it into quotes if it has spaces", len(args), c.CommandPath())
		}
		if len(args) > 0 {
			if flag := headerFlag(cmd.Flags()); flag != "" {
				// It may be the second word of a value that was not put into quotes.
				return fmt.Errorf("unexpected argument (not shown, since it may be part of the value of --%s; put that into quotes): `%s` takes flags only", flag, c.CommandPath())
			}
			return fmt.Errorf("unexpected argument %q: `%s` takes flags only", args[0], c.CommandPath())
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		warnings, err := applySettings(cmd.Flags(), p.environ, keys)
		if err != nil {
			return err
		}
		return c.run(cmd.Context(), warnings)
	}
}

// logFlags configure the log.
type logFlags struct {
	level string
	json  bool
	// current is the level of the logger, which may change while it is used.
	current slog.LevelVar
}

func (l *logFlags) add(flags *pflag.FlagSet) {
	l.level = "info"
	flags.Var(oneOf(&l.level, "debug", "info", "warn", "error"), "log-level", "minimum level of log messages, which go to standard error; debug logs every xDS message")
	flags.Var(either(&l.json, "text", "json"), "log-format", "format of log messages")
}

// serve runs a command that serves until its context ends. Its log goes to standard error through the queue, after the warnings.
func (l *logFlags) serve(p process, warnings []string, run func(queue *logqueue.Queue, log *slog.Logger) error) error {
	silent := func(err error) bool { _, is := exitCode(err); return is }
	return cli.Service("holdfast", p.stderr, silent, func(queue *logqueue.Queue) error {
		log := l.logger(queue.From(cli.Own), warnings)
		cli.ServiceLog(queue, log)
		return run(queue, log)
	})
}

// logger returns the logger, after it has logged the warnings.
func (l *logFlags) logger(w io.Writer, warnings []string) *slog.Logger {
	_ = l.current.UnmarshalText([]byte(l.level)) // the flag accepts only levels that slog knows
	log := cli.NewLog(w, &l.current, l.json)
	for _, warning := range warnings {
		log.Warn("unknown setting", "err", warning)
	}
	return log
}

// warn writes warnings of a command that has no log.
func warn(c *command, warnings []string) {
	for _, warning := range warnings {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "holdfast: warning: %s\n", warning)
	}
}
