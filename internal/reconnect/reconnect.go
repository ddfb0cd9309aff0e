// Package reconnect has the gRPC statuses with which a holdfast-mesh sends clients away that it serves well, or could
// serve later: they open another stream, to it or to another replica. Every client reads the code; holdfast's agents
// also read the details, which say that nothing has failed.
//
// The statuses are errors of gRPC (google.golang.org/grpc/status). All functions may be called concurrently.
package reconnect

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// domain is the domain of the ErrorInfo in the statuses of Moved.
const domain = "holdfast-xds.github.com"

// Reason is why a server ends a stream that works, as the reason of a google.rpc.ErrorInfo.
type Reason string

const (
	// MaxAge: the connection has reached its maximum age. Another one may lead to another replica.
	MaxAge Reason = "MAX_CONNECTION_AGE"
	// Stopping: the server stops. Others may serve at its address.
	Stopping Reason = "STOPPING"
	// Expired: the certificate or the token with which the client has opened the stream has expired.
	Expired Reason = "CREDENTIALS_EXPIRED"
)

var texts = map[Reason]string{
	MaxAge:   "the connection has reached its maximum age: connect again",
	Stopping: "the control plane is stopping: connect again",
	Expired:  "the certificate or token with which this stream was opened has expired: connect again with a new one",
}

// Moved returns the status of a stream that works and is ended so that its client opens another one: UNAVAILABLE, which
// every xDS client takes for a reason to connect again, with a google.rpc.ErrorInfo.
func Moved(why Reason) error {
	return with(codes.Unavailable, texts[why], &errdetails.ErrorInfo{Reason: string(why), Domain: domain})
}

// IsMoved reports whether a stream ended because its server wants the client to open another one: with a status of
// Moved, or because the connection was closed some time after a GOAWAY without an error, as other gRPC servers do when
// a connection has reached its maximum age. Of the latter gRPC has made a text.
func IsMoved(err error) bool {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.Unavailable {
		return false
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return true
		}
	}
	return strings.Contains(s.Message(), "received prior goaway: code: NO_ERROR")
}

// Full returns the status of a client that the server has no room for: RESOURCE_EXHAUSTED, with a google.rpc.RetryInfo
// that says after which time the client may try again.
func Full(after time.Duration, format string, args ...any) error {
	return with(codes.ResourceExhausted, fmt.Sprintf(format, args...), &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
}

// IsFull reports whether a server has no room for the client, and after which time it may try again; 0 if the server does
// not say so. It recognizes RESOURCE_EXHAUSTED of any server, but not that of this side's own gRPC, such as for a response
// that is too large: those have no details.
func IsFull(err error) (after time.Duration, full bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return max(0, info.GetRetryDelay().AsDuration()), true
		}
	}
	return 0, false
}

func with(code codes.Code, text string, detail protoadapt.MessageV1) error {
	s := status.New(code, text)
	if detailed, err := s.WithDetails(detail); err == nil { // it fails for codes.OK and for what cannot be marshalled only
		s = detailed
	}
	return s.Err()
}
