package upstream

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/reconnect"
)

// The reasons of failures, for metrics.
const (
	// ReasonName: the name of the server cannot be resolved.
	ReasonName = "name"
	// ReasonUnreachable: no address accepts a connection.
	ReasonUnreachable = "unreachable"
	// ReasonTLS: the handshake failed, because one side does not trust the other.
	ReasonTLS = "tls"
	// ReasonDenied: the server rejects the credentials.
	ReasonDenied = "denied"
	// ReasonLost: the connection was closed or broke.
	ReasonLost = "lost"
	// ReasonSilent: the server does not answer.
	ReasonSilent = "silent"
	// ReasonFull: the server has no room for this client, and says when it may come again.
	ReasonFull = "full"
	// ReasonOther: the server ended the stream with another error, or a file or setting cannot be used.
	ReasonOther = "other"
)

// Reasons returns all reasons of failures.
func Reasons() []string {
	return []string{ReasonName, ReasonUnreachable, ReasonTLS, ReasonDenied, ReasonLost, ReasonSilent, ReasonFull, ReasonOther}
}

// reasonOf returns the reason of the error that ended an attempt. What gRPC has made a text of is recognized by the
// text.
func reasonOf(err error) string {
	text := err.Error()
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	_, full := reconnect.IsFull(err)
	switch code := status.Code(err); {
	case full:
		return ReasonFull
	case code == codes.Unauthenticated, code == codes.PermissionDenied, has("401 Unauthorized", "403 Forbidden"):
		return ReasonDenied
	case errors.As(err, new(*net.DNSError)), has("no such host", "name resolver error", "produced zero addresses"):
		return ReasonName
	case has("x509: ", "tls: ", "authentication handshake failed"):
		return ReasonTLS
	case errors.As(err, new(*unreachable)):
		return ReasonUnreachable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), code == codes.DeadlineExceeded:
		return ReasonSilent
	case errors.As(err, new(*lost)):
		return ReasonLost
	}
	return ReasonOther
}
