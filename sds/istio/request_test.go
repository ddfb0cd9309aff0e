package istio

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestARequestIsSignedByTheKeyAndHasTheNamesAndTheLifetime(t *testing.T) {
	r := newRig(t, refuse(status.Error(codes.Unavailable, "later")))
	_, err := r.ask(t)
	checkFault(t, err, Unavailable)
	got := r.service.requests()[0]
	check(t, got.csr.CheckSignature())
	if len(got.csr.URIs) != 1 || got.csr.URIs[0].String() != names.ID || len(got.csr.DNSNames) != 2 || got.csr.DNSNames[0] != names.DNS[0] || got.csr.DNSNames[1] != names.DNS[1] {
		t.Errorf("URIs %v, DNS names %v; want %s", got.csr.URIs, got.csr.DNSNames, names)
	}
	if got.GetValidityDuration() != int64(90*time.Minute/time.Second) {
		t.Errorf("%d s are asked for, want 90 min", got.GetValidityDuration())
	}
	if got.GetMetadata() != nil {
		t.Errorf("metadata %v, want none", got.GetMetadata())
	}
	if token := got.head.Get("authorization"); len(token) > 0 {
		t.Errorf("authorization %q, want none", token)
	}
}

func TestAKubernetesSignerIsNamed(t *testing.T) {
	r := newRig(t, refuse(status.Error(codes.Unavailable, "later")))
	r.cfg.Signer = "clusterissuers.example/mesh"
	_, err := r.ask(t)
	checkFault(t, err, Unavailable)
	if got := r.service.requests()[0].GetMetadata().GetFields()["CertSigner"].GetStringValue(); got != r.cfg.Signer {
		t.Errorf("signer %q, want %q", got, r.cfg.Signer)
	}
}

func TestTheTokenIsReadAtEveryRequestAndHeadersAreSent(t *testing.T) {
	r := newRig(t, refuse(status.Error(codes.Unavailable, "later")))
	r.cfg.TokenFile = write(t, "token", "first\n")
	r.cfg.Headers = map[string]string{"ClusterID": "east"}
	ca := newCA(t, r.addr, r.cfg)
	for i, token := range []string{"first", "second"} {
		check(t, os.WriteFile(r.cfg.TokenFile, []byte(token), 0o600))
		_, err := ask(t, ca)
		checkFault(t, err, Unavailable)
		head := r.service.requests()[i].head
		if got := head.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+token {
			t.Errorf("authorization %q, want Bearer %s", got, token)
		}
		if got := head.Get("ClusterID"); len(got) != 1 || got[0] != "east" {
			t.Errorf("ClusterID %q, want east", got)
		}
	}
}

func TestWhatIsMissingHereIsALocalFaultAndNobodyIsAsked(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, tc := range []struct {
		name     string
		security dial.Security
		text     string
	}{
		{"the token file", dial.Security{TokenFile: missing}, "--istio-token-file: open " + missing},
		{"a token in the file", dial.Security{TokenFile: write(t, "token", "\n")}, "is empty"},
		{"the root of the CA", dial.Security{CA: missing}, "--istio-ca: open " + missing},
		{"the client's certificate", dial.Security{Cert: missing, Key: missing}, "--istio-cert, --istio-key: open " + missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, answerWith())
			if tc.security.CA == "" {
				tc.security.CA = r.cfg.CA
			}
			r.cfg.Security = tc.security
			_, err := r.ask(t)
			checkFault(t, err, Local, tc.text, "CA "+r.addr)
			if asked := r.service.requests(); len(asked) > 0 {
				t.Errorf("%d requests arrived, want none", len(asked))
			}
		})
	}
}

func TestAKeyThatCannotSignIsALocalFault(t *testing.T) {
	r := newRig(t, answerWith())
	_, err := newCA(t, r.addr, r.cfg).Issue(t.Context(), pki.Request{Names: names})
	checkFault(t, err, Local, "certificate request")
}

func TestEachCodeOfTheCAHasAReason(t *testing.T) {
	for code, want := range map[codes.Code]pki.Reason{
		codes.Unauthenticated:    Unauthenticated,
		codes.PermissionDenied:   Refused,
		codes.InvalidArgument:    Refused,
		codes.FailedPrecondition: Refused,
		codes.Unimplemented:      Refused,
		codes.NotFound:           Refused,
		codes.AlreadyExists:      Refused,
		codes.OutOfRange:         Refused,
		codes.DataLoss:           Refused,
		codes.Unavailable:        Unavailable,
		codes.DeadlineExceeded:   Unavailable,
		codes.ResourceExhausted:  Unavailable,
		codes.Aborted:            Unavailable,
		codes.Internal:           Unavailable,
		codes.Unknown:            Unavailable,
		codes.Canceled:           Unavailable,
	} {
		t.Run(code.String(), func(t *testing.T) {
			r := newRig(t, refuse(status.Error(code, "the CA's reason")))
			_, err := r.ask(t)
			checkFault(t, err, want, "CA "+r.addr, "the CA's reason")
			if status.Code(err) != code {
				t.Errorf("code %s, want %s: %v", status.Code(err), code, err)
			}
			if asked := r.service.requests(); len(asked) != 1 {
				t.Errorf("asked %d times, want once", len(asked))
			}
		})
	}
}

func TestWhoIsNotBelievedIsToldWhatToLookAt(t *testing.T) {
	r := newRig(t, refuse(status.Error(codes.Unauthenticated, "request authenticate failure")))
	_, err := r.ask(t)
	checkFault(t, err, Unauthenticated, "no token was sent: set --istio-token-file")
	r.cfg.TokenFile = write(t, "token", "t0ken")
	_, err = r.ask(t)
	checkFault(t, err, Unauthenticated, r.cfg.TokenFile, "audience", "ClusterID")
}
