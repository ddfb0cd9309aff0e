package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each shell loads the completions of the archive, and completes a flag of each command.
func TestCompletionsCompleteAFlagInEachShell(t *testing.T) {
	files := unpacked(t, dist(t), "linux-amd64")
	for _, shell := range []struct{ name, file, script string }{
		{"bash", "completions/bash/COMMAND", `
compopt() { :; } # bash has it only while it completes itself
source /usr/share/bash-completion/bash_completion
source "$1"
COMP_WORDS=(COMMAND SUB PREFIX) COMP_CWORD=2 COMP_LINE='COMMAND SUB PREFIX' COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9
$(complete -p COMMAND | sed 's/.* -F \([^ ]*\) .*/\1/') COMMAND PREFIX SUB
printf '%s\n' "${COMPREPLY[@]}"`},
		{"zsh", "completions/zsh/_COMMAND", `
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=(${1:h} \$fpath); autoload -U compinit; compinit -u -D; COLUMNS=200; echo read''y"
zpty -r z line '*ready*'
zpty -w -n z $'COMMAND SUB PREFIX\t'
zpty -r z line '*FLAG*'
print -r -- "$line"
zpty -d z`},
		{"fish", "completions/fish/COMMAND.fish", `source $argv[1]; complete -C 'COMMAND SUB PREFIX'`},
	} {
		for _, c := range []struct{ command, sub, prefix, flag string }{
			{"holdfast", "run", "--upstream-pl", "--upstream-plaintext"}, {"holdfast-mesh", "serve", "--allow-em", "--allow-empty"},
			{"holdfast-injector", "serve", "--on-re", "--on-reject"},
		} {
			t.Run(shell.name+" "+c.command, func(t *testing.T) {
				fill := strings.NewReplacer("COMMAND", c.command, "SUB", c.sub, "PREFIX", c.prefix, "FLAG", c.flag).Replace
				args := []string{"-c", fill(shell.script), shell.name, filepath.Join(files, fill(shell.file))}
				if shell.name == "fish" {
					args = append(args[:2], args[3])
				}
				cmd := exec.Command("timeout", append([]string{"60", shell.name}, args...)...)
				cmd.Env = append(os.Environ(), "PATH="+files+":"+os.Getenv("PATH"), "HOME="+t.TempDir(), "TERM=dumb")
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), c.flag) {
					t.Errorf("%s: %v\n%s", shell.name, err, out)
				}
			})
		}
	}
}
