package service

import "testing"

func TestTheProtocolOfAPortIsThatOfPilot(t *testing.T) {
	for name, tc := range map[string]struct {
		port                uint32
		transport, port2    string
		appProtocol, expect string
	}{
		"the name":                             {80, "TCP", "http", "", "HTTP"},
		"the beginning of the name":            {80, "TCP", "http2-web", "", "HTTP2"},
		"grpc-web has a hyphen":                {80, "TCP", "grpc-web-x", "", "GRPC-Web"},
		"upper case":                           {80, "TCP", "HTTPS", "", "HTTPS"},
		"appProtocol takes precedence":         {80, "TCP", "tcp", "grpc", "GRPC"},
		"appProtocol is cut, too":              {80, "TCP", "tcp", "http-foo", "HTTP"},
		"an unknown appProtocol":               {80, "TCP", "http", "example.com/x", "Unsupported"},
		"appProtocol of Kubernetes":            {80, "TCP", "", "kubernetes.io/h2c", "HTTP2"},
		"UDP":                                  {80, "UDP", "http", "http", "UDP"},
		"no name":                              {80, "TCP", "", "", "Unsupported"},
		"a port where the server speaks first": {3306, "TCP", "db", "", "TCP"},
		"such a port with a protocol":          {3306, "TCP", "http", "", "HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ProtocolOf(tc.port, tc.transport, tc.port2, tc.appProtocol).String(); got != tc.expect {
				t.Errorf("got %s, want %s", got, tc.expect)
			}
		})
	}
}
