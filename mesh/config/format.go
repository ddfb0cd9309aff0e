package config

import (
	"fmt"
	"regexp"
	"strings"
)

// formatCommand matches a command of Envoy's formats, as Envoy itself does: %NAME(ARGUMENTS):LENGTH%.
var formatCommand = regexp.MustCompile(`^%[A-Z0-9_]+(?:\([^)]*\))?(?::[0-9]+)?%`)

// formatProblem returns why a text is no format of access logs and tags; "" if it is one. It does not know the names of
// commands: which there are depends on the version of Envoy.
func formatProblem(text string) string {
	for {
		at := strings.IndexByte(text, '%')
		if at < 0 {
			return ""
		}
		text = text[at:]
		command := formatCommand.FindString(text)
		switch {
		case command != "":
			text = text[len(command):]
		case strings.HasPrefix(text, "%%"):
			text = text[2:]
		default:
			return fmt.Sprintf("is no format: %.40q is no command, such as %%PROTOCOL%% or %%REQ(X-REQUEST-ID)%%; write %%%% for a percent sign", text)
		}
	}
}
