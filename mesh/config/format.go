package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/nearest"
)

// formatCommand matches a command at the begin of a text, as Envoy's parser does (source/common/formatter/substitution_formatter.cc).
var formatCommand = regexp.MustCompile(`^%([A-Z0-9_]+)(\((.*?)\))?(?::([0-9]+))?%`)

// commandForm says how a command of a format is written. Envoy rejects the resource with one that is written otherwise.
type commandForm struct {
	// parameter returns what is wrong with what is in parentheses, "" for nothing in them; nil if there must be none.
	parameter func(string) string
	// length is set if :NUMBER may follow.
	length bool
}

// Commands of Envoy's formats, as Envoy 1.36 and 1.40 have told when they were asked: formatCommands are those of both, which any
// proxy takes, and laterCommands those that 1.36 does not have.
var (
	formatCommands = commands(`
	ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS CUSTOM_FLAGS
	DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT DOWNSTREAM_DIRECT_LOCAL_ADDRESS
	DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS
	DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED
	DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN
	DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT
	DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1 DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN
	DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER
	DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS
	DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION
	DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION FILTER_CHAIN_NAME GRPC_STATUS
	GRPC_STATUS_NUMBER HOSTNAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL REQUESTED_SERVER_NAME REQUEST_DURATION REQUEST_HEADERS_BYTES
	REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES
	RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME STREAM_ID TLS_JA3_FINGERPRINT TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER
	UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
	UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOST_NAME
	UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN
	UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT
	UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_PORT
	UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_TLS_CIPHER UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION UPSTREAM_TRANSPORT_FAILURE_REASON
	UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME
`, map[string]commandForm{
		"PATH":       {pathParameter, true},
		"START_TIME": {anyText, false}, "START_TIME_LOCAL": {anyText, false}, "EMIT_TIME": {anyText, false}, "EMIT_TIME_LOCAL": {anyText, false},
		"DOWNSTREAM_PEER_CERT_V_START": {anyText, false}, "DOWNSTREAM_PEER_CERT_V_END": {anyText, false},
		"UPSTREAM_PEER_CERT_V_START": {anyText, false}, "UPSTREAM_PEER_CERT_V_END": {anyText, false},
		"RESPONSE_CODE_DETAILS": {anyText, false},
		"REQ":                   {headerParameter, true}, "RESP": {headerParameter, true}, "TRAILER": {headerParameter, true},
		"QUERY_PARAM": {someText, true}, "ENVIRONMENT": {someText, true}, "STREAM_INFO_REQ": {someText, true},
		"UPSTREAM_METADATA": {someText, false}, "CLUSTER_METADATA": {someText, false}, "DYNAMIC_METADATA": {someText, false},
		"METADATA": {metadataParameter, true}, "FILTER_STATE": {filterStateParameter, true}, "UPSTREAM_FILTER_STATE": {filterStateParameter, true},
		"COMMON_DURATION": {durationParameter, false}, "CEL": {celProblem, true}, "TYPED_CEL": {celProblem, true},
	})
	laterCommands = commands(`
	DOWNSTREAM_CX_RTT DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID
	DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL DOWNSTREAM_TLS_GROUP LISTENER_NAME
	ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HOSTS_ATTEMPTED
	UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT UPSTREAM_LOCAL_CLOSE_REASON
	UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID UPSTREAM_SERVER_NAME UPSTREAM_TLS_GROUP
`, map[string]commandForm{
		"QUERY_PARAMS":   {oneOf("", "ORIG", "DECODED"), true},
		"REQUEST_HEADER": {headerParameter, true}, "RESPONSE_HEADER": {headerParameter, true}, "RESPONSE_TRAILER": {headerParameter, true},
	})
	// logCommands are those of an extension that the generator of access logs configures.
	logCommands = commands("", map[string]commandForm{"REQ_WITHOUT_QUERY": {headerParameter, true}})
)

// commands adds those that have neither a parameter nor a length, with white space between them.
func commands(plain string, all map[string]commandForm) map[string]commandForm {
	for name := range strings.FieldsSeq(plain) {
		all[name] = commandForm{parameter: oneOf("")}
	}
	return all
}

func anyText(string) string { return "" }

func someText(text string) string {
	if text == "" {
		return "needs a parameter"
	}
	return ""
}

func oneOf(values ...string) func(string) string {
	return func(text string) string {
		switch {
		case slices.Contains(values, text):
			return ""
		case len(values) == 1:
			return "takes no parameter"
		}
		return fmt.Sprintf("has the parameter %q: want one of %s", text, strings.Join(values[1:], ", "))
	}
}

// headerParameter is NAME or NAME?ALTERNATIVE.
func headerParameter(text string) string {
	name, alternative, _ := strings.Cut(text, "?")
	switch {
	case text == "":
		return "needs the name of a header"
	case strings.Contains(alternative, "?"):
		return "has more than one alternative"
	case !formatHeader.MatchString(name + alternative):
		return "has no name of a header"
	}
	return ""
}

var formatHeader = regexp.MustCompile("^:?[-A-Za-z0-9!#$%&'*+.^_`|~:]*$")

// pathParameter is WQ or NQ, with or without the query, and from where.
func pathParameter(text string) string {
	query, of, more := strings.Cut(text, ":")
	of, _, _ = strings.Cut(of, ":")
	if !slices.Contains([]string{"", "WQ", "NQ"}, query) || more && !slices.Contains([]string{"ORIG", "PATH", "ORIG_OR_PATH"}, of) {
		return "wants WQ or NQ, and after a colon ORIG, PATH or ORIG_OR_PATH"
	}
	return ""
}

func metadataParameter(text string) string {
	of, _, _ := strings.Cut(text, ":")
	kinds := []string{"DYNAMIC", "CLUSTER", "ROUTE", "UPSTREAM_HOST", "LISTENER", "VIRTUAL_HOST"}
	if !slices.Contains(kinds, of) {
		return "is of no kind of metadata: want one of " + strings.Join(kinds, ", ")
	}
	return ""
}

func filterStateParameter(text string) string {
	parts := strings.Split(text, ":")
	switch {
	case parts[0] == "":
		return "needs the name of an object"
	case len(parts) > 1 && !slices.Contains([]string{"", "PLAIN", "TYPED", "FIELD"}, parts[1]):
		return "wants PLAIN, TYPED or FIELD after the first colon"
	case len(parts) > 1 && (parts[1] == "FIELD") != (len(parts) > 2):
		return "wants the name of a field after FIELD, and only then"
	}
	return ""
}

func durationParameter(text string) string {
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && !slices.Contains([]string{"ms", "us", "ns"}, parts[2]) {
		return "wants BEGIN:END, and after a colon ms, us or ns"
	}
	return ""
}

// formatProblem returns why a text is no format that Envoy takes in the value of a header; "" if it is one. Envoy 1.36 takes it, too.
func formatProblem(text string) string { return formatProblemOf(text, formatCommands) }

// IsFormat reports whether a text is a format that Envoy takes in the value of a header.
func IsFormat(text string) bool { return formatProblem(text) == "" }

// logFormatProblem is formatProblem for access logs and tags of the mesh configuration: whoever writes it knows the versions of his proxies.
func logFormatProblem(text string) string {
	return formatProblemOf(text, formatCommands, laterCommands, logCommands)
}

func formatProblemOf(text string, known ...map[string]commandForm) string {
	for {
		at := strings.IndexByte(text, '%')
		if at < 0 {
			return ""
		}
		text = text[at:]
		parts := formatCommand.FindStringSubmatch(text)
		if parts == nil {
			if rest, ok := strings.CutPrefix(text, "%%"); ok {
				text = rest
				continue
			}
			return fmt.Sprintf("is no format: %.40q is no command, such as %%PROTOCOL%% or %%REQ(X-REQUEST-ID)%%; write %%%% for a percent sign", text)
		}
		if problem := commandProblem(parts[1], parts[3], parts[4], known); problem != "" {
			return fmt.Sprintf("is no format: %.40q %s", parts[0], problem)
		}
		text = text[len(parts[0]):]
	}
}

// commandProblem returns what is wrong with a command, its parameter and its length, "" for none.
func commandProblem(name, parameter, length string, known []map[string]commandForm) string {
	var names []string
	for _, commands := range known {
		form, ok := commands[name]
		if !ok {
			names = sortedKeys(commands)
			continue
		}
		if problem := form.parameter(parameter); problem != "" {
			return problem
		}
		if _, err := strconv.ParseUint(length, 10, 64); length != "" && (err != nil || !form.length) {
			return "takes no such length"
		}
		return ""
	}
	if _, later := laterCommands[name]; later {
		return "is a command that Envoy 1.36 does not have"
	}
	return "is no command of Envoy" + nearest.Question("", name, names) + "; write %% for a percent sign"
}
