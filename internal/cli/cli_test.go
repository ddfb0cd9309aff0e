package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/logqueue"
)

func TestAnErrorHasItsExitCode(t *testing.T) {
	for _, row := range []struct {
		name string
		err  error
		code int
		said string
	}{
		{"none", nil, ExitOK, ""},
		{"of usage", errors.New("--a: want b\n"), ExitUsage, "program: --a: want b\n"},
		{"failed", Failed(errors.New("no file")), ExitFailed, "program: no file\n"},
		{"failed, wrapped", fmt.Errorf("x: %w", Failed(errors.New("no file"))), ExitFailed, "program: x: no file\n"},
		{"reported", fmt.Errorf("x: %w", ErrReported), ExitFailed, ""},
		{"reported, joined", errors.Join(errors.New("a"), ErrReported), ExitFailed, ""},
		{"no failure", Failed(nil), ExitOK, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := Exit(&out, "program", row.err); code != row.code || out.String() != row.said {
				t.Errorf("%d %q, want %d %q", code, out.String(), row.code, row.said)
			}
		})
	}
}

func TestTheVersionIsTheLinkersOrTheModules(t *testing.T) {
	for _, tc := range []struct{ linked, module, want string }{
		{"v1.2.3", "v9.9.9", "v1.2.3"},
		{"dev", "v1.2.3", "v1.2.3"},
		{"dev", "(devel)", "dev"},
		{"dev", "", "dev"},
	} {
		if got := versionOf(tc.linked, &debug.BuildInfo{Main: debug.Module{Version: tc.module}}); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

func TestARootHasItsCommandsAndTheVersion(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		said string
	}{
		{"no command", nil, "no command: `program help` lists them"},
		{"an unknown flag", []string{"serve", "--a"}, "unknown flag: --a (`program serve --help` lists the flags)"},
		{"a flag that is nearly one", []string{"serve", "--limt", "1"}, "unknown flag: --limt, did you mean --limit? (`program serve --help` lists the flags)"},
		{"a command that is nearly one", []string{"serv"}, `unknown command "serv", did you mean serve? (` + "`program help` lists them)"},
		{"a command that is none", []string{"x"}, `unknown command "x" (` + "`program help` lists them)"},
		{"version", []string{"version"}, "program v1.2.3\n"},
		{"version as JSON", []string{"version", "-o", "json"}, `"version": "v1.2.3"`},
		{"version in another form", []string{"version", "-o", "xml"}, `--output: "xml": want text or json`},
		{"the flag version", []string{"--version"}, "program v1.2.3\n"},
		{"a wrong number", []string{"serve", "--limit", "x"}, `--limit: "x": want a whole number, such as 100`},
		{"a number without a unit", []string{"serve", "--time", "100"}, `--time: "100": want a duration with its unit, such as 500ms, 5s or 10m`},
		{"help", []string{"help"}, "  serve         serve it\n"},
		{"help of a command", []string{"help", "serve"}, "Serve it.\n\nUsage\n  program serve [flags]\n\nHow much\n  --limit N                                  [PROGRAM_LIMIT, default 1]\n        at most N\n\nFlags\n  --time duration                            [PROGRAM_TIME, default 0s]\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			serve := &cobra.Command{Use: "serve", Short: "serve it", RunE: func(*cobra.Command, []string) error { return nil }}
			serve.Flags().Int("limit", 1, "at most `N`")
			Group(serve.Flags(), "How much")
			serve.Flags().Duration("time", 0, "")
			root := Root("program", "a program", "It is a program.", "v1.2.3", &out, &out, nil, serve)
			root.SetArgs(row.args)
			if Exit(&out, "program", root.Execute()); !strings.Contains(out.String(), row.said) {
				t.Errorf("%q, want %q", out.String(), row.said)
			}
		})
	}
}

func TestDurationsAndListsAreReadableInTheLogAsJSON(t *testing.T) {
	var out bytes.Buffer
	NewLog(&out, slog.LevelInfo, true).Info("tried", "retry_in", 1500*time.Millisecond, "uids", []uint32{0, 1337})
	if !strings.Contains(out.String(), `"retry_in":"1.5s","uids":[0,1337]}`) {
		t.Error(out.String())
	}
}

func TestTheFlagsOfTheLog(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "level=INFO msg=i a=1s\n",
		"--log-level=debug":                    "level=DEBUG msg=d\n",
		"--log-level=error --log-format=json":  "",
		"--log-format=json":                    `"level":"INFO","msg":"i","a":"1s"}` + "\n",
		"--log-level=loud":                     `"loud": want debug, info, warn or error`,
		"--log-format=xml":                     `"xml": want text or json`,
		"--log-level=debug --log-format=JSON ": `"JSON": want text or json`,
	} {
		var l LogFlags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.SetOutput(io.Discard)
		l.Add(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			if !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s: %v, want %s", args, err, want)
			}
			continue
		}
		var out bytes.Buffer
		log := l.Logger(&out)
		log.Debug("d")
		log.Info("i", "a", time.Second)
		if !strings.Contains(out.String(), want) || want == "" && out.Len() > 0 {
			t.Errorf("%s: %q, want %q", args, out.String(), want)
		}
	}
}

// What a service writes to its queue, and the error that ends it, come to standard error; the error leads to its exit code
// and is written once.
func TestAServiceEndsWithItsErrorInTheLog(t *testing.T) {
	quiet := errors.New("not to be written")
	for _, row := range []struct {
		name string
		err  error
		code int
		said string
	}{
		{"well", nil, ExitOK, "a line\n"},
		{"failed", Failed(errors.New("no file")), ExitFailed, "a line\nprogram: no file\n"},
		{"of usage", errors.New("--a: want b"), ExitUsage, "a line\nprogram: --a: want b\n"},
		{"silent", quiet, ExitUsage, "a line\nprogram: not to be written\n"}, // by Exit, unless the caller keeps it from it
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Service("program", &out, func(err error) bool { return errors.Is(err, quiet) }, func(q *logqueue.Queue) error {
				_, _ = io.WriteString(q.From(Own), "a line\n")
				return row.err
			})
			if !errors.Is(err, row.err) {
				t.Errorf("%v, want %v", err, row.err)
			}
			if code := Exit(&out, "program", err); code != row.code || out.String() != row.said {
				t.Errorf("%d %q, want %d %q", code, out.String(), row.code, row.said)
			}
		})
	}
}

// Errors of gRPC are warnings of the log, in its format.
func TestErrorsOfGRPCAreInTheLog(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(NewLog(&out, slog.LevelInfo, true))
	_, _ = grpcErrors{}.Write([]byte("2026/01/02 03:04:05 ERROR: [core] it broke\n"))
	if !strings.Contains(out.String(), `"level":"WARN","msg":"gRPC: [core] it broke"}`) {
		t.Error(out.String())
	}
}

// The command line beats a variable, which beats a key of the file, which beats the default.
func TestRoot_FlagsHaveTheValuesOfVariablesAndOfAFile(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		vars []string // NAME=VALUE
		file string
		says string
	}{
		{"none", nil, nil, "", "limit 1, names [a], hosts [], wait false, time 0s\n"},
		{"all", nil, []string{"LIMIT=2", "NAMES=b,c", "HOSTS=d,e", "WAIT=true", "TIME=1m"}, "", "limit 2, names [b c], hosts [d e], wait true, time 1m0s\n"},
		{"a list in lines", nil, []string{"HOSTS=d,e\nf"}, "", "limit 1, names [a], hosts [d,e f],"},
		{"beside flags", []string{"--limit=3", "--names=x"}, []string{"LIMIT=2", "NAMES=b", "WAIT=true"}, "", "limit 3, names [x], hosts [], wait true,"},
		{"an empty list", nil, []string{"NAMES="}, "", "limit 1, names [],"},
		{"a wrong one", nil, []string{"LIMIT=x"}, "", `my-program: MY_PROGRAM_LIMIT: "x": want a whole number, such as 100` + "\n"},
		{"one that is nearly a flag", nil, []string{"LIMT=2"}, "", "my-program: warning: environment variable MY_PROGRAM_LIMT is not a setting, did you mean MY_PROGRAM_LIMIT?\nlimit 1"},
		{"one of another command", nil, []string{"OUTPUT=json"}, "", "limit 1"},
		{"those of others", nil, []string{"SERVICE_HOST=10.0.0.1", "PORT=tcp://10.0.0.1:1", "PORT_1_TCP=x", "FLAGS=--limit=7"}, "", "limit 1"},
		{"a file", nil, nil, "limit: 4\nnames: [b, c]\nhosts: d,e\nwait: true\ntime: 2s", "limit 4, names [b c], hosts [d,e], wait true, time 2s\n"},
		{"a file, a variable and a flag", []string{"--wait=false"}, []string{"LIMIT=5"}, "limit: 4\nwait: true\noutput: json", "limit 5, names [a], hosts [], wait false,"},
		{"a key that is nearly a flag", nil, nil, "limt: 4", `flags.yaml: unknown key "limt", did you mean limit?`},
		{"a duration without a unit", nil, nil, "time: 30", "flags.yaml: time: 30: want a duration with its unit"},
		{"a number where text is wanted", nil, nil, "hosts: [1.10]", "flags.yaml: hosts: want a list of texts: put 1.1 into quotes"},
		{"a list where one value is wanted", nil, nil, "limit: [1]", "flags.yaml: limit: want one value, not a list"},
		{"no mapping", nil, nil, "[limit]", "want a mapping of flag names to values"},
		{"two documents", nil, nil, "limit: 1\n---\nlimit: 2", "line 2: a second YAML document begins: want one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, pair := range tc.vars {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv("MY_PROGRAM_"+name, value)
			}
			t.Setenv("MY_PROGRAMS_LIMIT", "9")
			if tc.file != "" {
				path := filepath.Join(t.TempDir(), "flags.yaml")
				if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
					t.Fatal(err)
				}
				t.Setenv("MY_PROGRAM_FLAGS_FILE", path)
			}
			var out bytes.Buffer
			var limit int
			var names, hosts []string
			var wait bool
			var span time.Duration
			serve := &cobra.Command{Use: "serve", RunE: func(*cobra.Command, []string) error {
				_, err := fmt.Fprintf(&out, "limit %d, names %v, hosts %v, wait %t, time %s\n", limit, names, hosts, wait, span)
				return err
			}}
			serve.Flags().IntVar(&limit, "limit", 1, "")
			serve.Flags().StringSliceVar(&names, "names", []string{"a"}, "")
			serve.Flags().StringArrayVar(&hosts, "hosts", nil, "")
			serve.Flags().BoolVar(&wait, "wait", false, "")
			serve.Flags().DurationVar(&span, "time", 0, "")
			foreign := func(name string) bool { return name == "FLAGS" }
			root := Root("my-program", "a program", "It is a program.", "v1.2.3", &out, &out, foreign, serve)
			root.SetArgs(append([]string{"serve"}, tc.args...))
			code := Exit(&out, "my-program", root.Execute())
			if !strings.Contains(out.String(), tc.says) {
				t.Errorf("%q, want %q", out.String(), tc.says)
			}
			if ran := strings.HasPrefix(tc.says, "limit ") || strings.Contains(tc.says, "warning"); ran != (code == ExitOK) {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
