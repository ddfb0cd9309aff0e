package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

// DefaultPrefix is that of the keys.
const DefaultPrefix = "/holdfast"

const (
	// requestTimeout is how long one request may take: longer than the election of a leader.
	requestTimeout = 5 * time.Second
	// diagnosisTimeout is how long a connection may take by which it is found out why nobody answers.
	diagnosisTimeout = time.Second
	// Pings find a member that does not answer any more, so that another one is asked.
	pingTime, pingTimeout = 10 * time.Second, 3 * time.Second
)

// redial is the pause between two attempts to connect to a member. gRPC's default grows to two minutes, for which an etcd that is
// back after an hour would not be noticed, and requests would fail.
var redial = backoff.Config{BaseDelay: time.Second / 2, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

// Options say where the store is, and who asks.
type Options struct {
	// Endpoints are the URLs of the members: http://HOST:PORT, https://HOST:PORT, unix://PATH.
	Endpoints []string
	// Prefix begins the keys; "" means DefaultPrefix. It begins with a slash and does not end with one.
	Prefix string
	// CA is a file of the CAs to trust with https; "" for those of the system. Cert and Key are files with a client
	// certificate and its key; both or none. They are read again for each connection.
	CA, Cert, Key string
	// User and PasswordFile are those of etcd's authentication; "" for none. The file is read again when etcd does not accept
	// the password any more.
	User, PasswordFile string
	// SecretKeys are files of keys (package keyfile) for Secrets: the first encrypts, all decrypt. Without one, Secrets are
	// neither stored nor read.
	SecretKeys []string
	// Author is who writes, for whoever reads a conflict; "" for USER@HOST of this process.
	Author string
	Log    *slog.Logger
}

// IsSet reports whether anything is set that is of use with Endpoints only.
func (o Options) IsSet() bool {
	return o.Prefix != "" && o.Prefix != DefaultPrefix || o.CA != "" || o.Cert != "" || o.Key != "" || o.User != "" || o.PasswordFile != ""
}

// Client is a connection to a store. Create one with Open.
type Client struct {
	options Options
	conf    clientv3.Config // without the password
	prefix  string
	sealer  *seal.Sealer
	author  string
	user    string
	tls     *tls.Config // nil for plaintext
	log     *slog.Logger
	page    paging

	mu     sync.Mutex
	etcd   *clientv3.Client // nil until it is needed, and after etcd has not accepted the password
	cancel context.CancelFunc
	closed bool
}

// Open checks the options and reads the files. It does not wait for a connection.
func Open(o Options) (*Client, error) {
	prefix := cmp.Or(o.Prefix, DefaultPrefix)
	if !strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") || strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("--etcd-prefix %q: want a path such as %s, without a slash at its end", prefix, DefaultPrefix)
	}
	c := &Client{options: o, prefix: prefix, author: o.Author, user: o.User, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	if c.author == "" {
		c.author = thisProcess()
	}
	c.conf = clientv3.Config{
		Endpoints: o.Endpoints, Username: o.User, DialTimeout: requestTimeout, Logger: zap.NewNop(), RejectOldCluster: false,
		DialKeepAliveTime: pingTime, DialKeepAliveTimeout: pingTimeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: requestTimeout})},
	}
	var err error
	if c.conf.TLS, err = o.tls(); err != nil {
		return nil, err
	}
	c.tls = c.conf.TLS
	if _, err = o.password(); err != nil {
		return nil, err
	}
	if c.sealer, err = seal.Load(o.SecretKeys); err != nil {
		return nil, err
	}
	return c, nil
}

// connection returns the connection. The first time, with a user, it waits for etcd, so that a server can start without it.
func (c *Client) connection(ctx context.Context) (*clientv3.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, errors.New("the connection to etcd is closed")
	case c.etcd != nil:
		return c.etcd, nil
	}
	conf := c.conf
	var err error
	if conf.Password, err = c.options.password(); err != nil {
		return nil, err
	}
	base, cancel := context.WithCancel(context.Background()) // the client's for as long as it lives
	conf.Context = base
	stop := context.AfterFunc(ctx, cancel)
	client, err := clientv3.New(conf)
	if !stop() && err == nil {
		_ = client.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	c.etcd, c.cancel = client, cancel
	return client, nil
}

// reconnect lets the next request read the password again.
func (c *Client) reconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.etcd != nil {
		_ = c.etcd.Close() // it only says that it was canceled
		c.cancel()
		c.etcd = nil
	}
}

// tls checks the endpoints, and returns the settings of TLS; nil for none.
func (o Options) tls() (*tls.Config, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("--etcd: no URL of a member")
	}
	var schemes []string
	for _, endpoint := range o.Endpoints {
		u, err := url.Parse(endpoint)
		switch {
		case err != nil || !slices.Contains([]string{"http", "https", "unix"}, u.Scheme) || u.Host == "" && u.Scheme != "unix":
			return nil, errors.New("--etcd: want URLs such as https://HOST:2379, with commas between the members")
		case u.User != nil:
			return nil, errors.New("--etcd: a URL has a user: give --etcd-user and --etcd-password-file, because URLs are shown in logs")
		case strings.Trim(u.Path, "/") != "" && u.Scheme != "unix":
			return nil, fmt.Errorf("--etcd %s: a URL of a member has no path: --etcd-prefix is that of the keys", endpoint)
		}
		schemes = append(schemes, u.Scheme)
	}
	secure := slices.Contains(schemes, "https")
	switch {
	case secure && slices.ContainsFunc(schemes, func(s string) bool { return s != "https" }):
		return nil, errors.New("--etcd: all members must have https, or none")
	case !secure && (o.CA != "" || o.Cert != "" || o.Key != ""):
		return nil, errors.New("--etcd-ca, --etcd-cert and --etcd-key are for https: the URLs of --etcd have another scheme")
	case !secure:
		return nil, nil
	case (o.Cert == "") != (o.Key == ""):
		return nil, errors.New("--etcd-cert and --etcd-key go together: give both or none")
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		var err error
		if conf.RootCAs, err = dial.CertPool(o.CA); err != nil {
			return nil, fmt.Errorf("--etcd-ca: %w", err)
		}
	}
	if o.Cert == "" {
		return conf, nil
	}
	if _, err := dial.KeyPair(o.Cert, o.Key); err != nil {
		return nil, fmt.Errorf("--etcd-cert, --etcd-key: %w", err)
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := dial.KeyPair(o.Cert, o.Key)
		return &pair, err
	}
	return conf, nil
}

func (o Options) password() (string, error) {
	switch {
	case o.User == "" && o.PasswordFile == "":
		return "", nil
	case o.User == "" || o.PasswordFile == "":
		return "", errors.New("--etcd-user and --etcd-password-file go together: give both or none")
	}
	text, err := userfile.ReadSecret(o.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("--etcd-password-file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("--etcd-password-file: %s: it is empty", o.PasswordFile)
	}
	return password, nil
}

// thisProcess returns USER@HOST.
func thisProcess() string {
	user := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), fmt.Sprintf("uid %d", os.Geteuid()))
	if host, err := os.Hostname(); err == nil {
		user += "@" + host
	}
	return user
}

// Replicas returns a client for what servers tell each other (package replica), and what begins the keys of that. They are
// not below those of the documents.
func (c *Client) Replicas(ctx context.Context) (client *clientv3.Client, prefix string, err error) {
	client, err = c.connection(ctx)
	return client, c.prefix + "-replicas/", err
}

// Close ends the connection.
func (c *Client) Close() {
	c.reconnect()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// errDenied is the error of what the user may not do.
var errDenied = errors.New("etcd does not permit it")

// Denied reports whether an error says that etcd does not permit it.
func Denied(err error) bool { return errors.Is(err, errDenied) }

// Explain returns an error of etcd with what to do about it.
func (c *Client) Explain(err error) error {
	err = rpctypes.Error(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrPermissionDenied), strings.Contains(err.Error(), "permission denied"): // a watch has only the text
		return fmt.Errorf("%w to %s: a role of that user must grant the keys", errDenied, cmp.Or(c.user, "this client"))
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return errors.New("etcd wants a user: give --etcd-user and --etcd-password-file, or --etcd-cert and --etcd-key")
	case errors.Is(err, rpctypes.ErrAuthFailed):
		c.reconnect() // the file may have another password now
		return fmt.Errorf("etcd does not accept the user %s with this password (--etcd-user, --etcd-password-file)", c.user)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return errors.New("etcd's database is full: compact and defragment it, then disarm its alarm NOSPACE (etcdctl alarm disarm)")
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrLeaderChanged), errors.Is(err, rpctypes.ErrTimeout), errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail):
		return fmt.Errorf("etcd has no leader: do the members of its majority run, and reach each other? (%w)", err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return errors.New("etcd does not take a request of this size (its --max-request-bytes, 1.5 MiB by default)")
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable:
		return fmt.Errorf("no answer from etcd: %s", c.diagnose())
	}
	return fmt.Errorf("etcd: %w", err)
}

// diagnose connects to each member, and returns why none answers.
func (c *Client) diagnose() string {
	var reasons []string
	for _, endpoint := range c.endpoints() {
		reason := fmt.Sprintf("it takes connections, and does not answer within %s", requestTimeout)
		if err := c.dial(endpoint); err != nil {
			reason = err.Error()
		}
		reasons = append(reasons, endpoint+": "+reason)
	}
	return strings.Join(reasons, "; ")
}

// dial connects to a member and ends the connection.
func (c *Client) dial(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	network, address := "tcp", u.Host
	if u.Scheme == "unix" {
		network, address = "unix", u.Host+u.Path
	}
	conn, err := net.DialTimeout(network, address, diagnosisTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if c.tls == nil {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(diagnosisTimeout)); err != nil {
		return err
	}
	conf := c.tls.Clone()
	conf.ServerName = u.Hostname()
	return tls.Client(conn, conf).Handshake()
}

func (c *Client) endpoints() []string { return c.options.Endpoints }
