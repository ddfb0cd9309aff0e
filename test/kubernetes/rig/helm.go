package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// helm is the command that `make helm` builds, in the directory that `make cluster` names.
func helm() string { return filepath.Join(os.Getenv("HELM"), "helm") }

// Shell makes a command of bash in a directory, with kubectl and helm, and with all rights.
func Shell(dir, commands string) *exec.Cmd {
	cmd := Node.Command("bash", "-ec", "cd "+dir+"\n"+commands)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+Node.Kubeconfig(), "HOME="+dir)
	for i, pair := range cmd.Env {
		if path, ok := strings.CutPrefix(pair, "PATH="); ok {
			cmd.Env[i] = "PATH=" + filepath.Dir(helm()) + ":" + path
		}
	}
	return cmd
}

// Helm runs Helm with all rights, with what it keeps below a directory, and returns what it wrote to standard output.
func Helm(dir string, args ...string) (string, error) {
	if _, err := os.Stat(helm()); err != nil {
		return "", errors.New("Helm is not built: run `make cluster`, or set HELM to the directory that `make helm` names")
	}
	cmd := Node.Command(helm(), append([]string{"--kubeconfig", Node.Kubeconfig()}, args...)...)
	for _, kind := range []string{"CACHE", "CONFIG", "DATA"} {
		cmd.Env = append(cmd.Env, "HELM_"+kind+"_HOME="+filepath.Join(dir, strings.ToLower(kind)))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("helm %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}
