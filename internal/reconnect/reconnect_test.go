package reconnect

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestStatusesAreRecognized(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		moved bool
		full  bool
		after time.Duration
	}{
		{name: "no error"},
		{name: "no status", err: errors.New("EOF")},
		{name: "maximum age", err: Moved(MaxAge), moved: true},
		{name: "the server stops, wrapped", err: fmt.Errorf("receiving: %w", Moved(Stopping)), moved: true},
		{name: "another reason for UNAVAILABLE", err: status.Error(codes.Unavailable, "the configuration has not been read yet")},
		{name: "an ErrorInfo of somebody else", err: with(codes.Unavailable, "quota", &errdetails.ErrorInfo{Reason: "STOPPING", Domain: "googleapis.com"})},
		{name: "a connection that was closed after a GOAWAY", moved: true,
			err: status.Error(codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR, debug data: "max_age"`)},
		{name: "… with an error",
			err: status.Error(codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: ENHANCE_YOUR_CALM, debug data: "too_many_pings"`)},
		{name: "full", err: Full(time.Minute, "more than %d proxies", 3), full: true, after: time.Minute},
		{name: "full, a hint in the past", err: Full(-time.Minute, "full"), full: true},
		{name: "a response that is too large", err: status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			after, full := IsFull(tc.err)
			if IsMoved(tc.err) != tc.moved || full != tc.full || after != tc.after {
				t.Errorf("moved %v, full %v after %s; want %v, %v after %s", IsMoved(tc.err), full, after, tc.moved, tc.full, tc.after)
			}
		})
	}
	if text := status.Convert(Full(time.Minute, "more than %d proxies", 3)).Message(); text != "more than 3 proxies" {
		t.Errorf("the text is %q", text)
	}
}
