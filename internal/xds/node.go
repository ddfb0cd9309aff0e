package xds

import (
	"cmp"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Build returns which build of its program a client is: user_agent_build_version with the beginning of its revision, or user_agent_version;
// "" if the client says neither.
func Build(node *corev3.Node) string {
	build := node.GetUserAgentBuildVersion()
	v := build.GetVersion()
	if v == nil {
		return node.GetUserAgentVersion()
	}
	version := fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	fields := build.GetMetadata().GetFields()
	revision := fields["revision.sha"].GetStringValue()
	revision = strings.ToValidUTF8(revision[:min(len(revision), 8)], "")
	var differs string
	if status := fields["revision.status"].GetStringValue(); !strings.EqualFold(cmp.Or(status, "Clean"), "Clean") {
		differs = "-modified"
	}
	if revision == "" {
		return version + differs
	}
	return version + "-" + revision + differs
}
