package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// addLog sets the format of log lines. Envoy rejects it together with --log-format on its command line.
func addLog(b *bootstrapv3.Bootstrap, cfg Config) error {
	switch cfg.Log {
	case Text:
		return nil
	case JSONLine:
	default:
		return fmt.Errorf("log format %q is neither %s nor %s", cfg.Log, Text, JSONLine)
	}
	// %j is the message, escaped for JSON.
	format, err := structpb.NewStruct(map[string]any{
		"time": "%Y-%m-%dT%T.%e%z", "level": "%l", "thread": "%t", "logger": "%n", "source": "%g:%#", "msg": "%j",
	})
	if err != nil {
		return err
	}
	b.ApplicationLogConfig = &bootstrapv3.Bootstrap_ApplicationLogConfig{
		LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
			LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_JsonFormat{JsonFormat: format},
		},
	}
	return nil
}
