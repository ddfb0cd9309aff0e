package dial

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
)

// ServerTLS configures the TLS of a server by files: those of the flags --tls-cert, --tls-key and --tls-client-ca, each "" for none.
type ServerTLS struct {
	// Cert and Key are the server's certificate chain and key; both or none.
	Cert, Key string
	// ClientCA, if set, makes clients present a certificate that leads to one of its certificates.
	ClientCA string
	// ClientCAFlag is the flag of ClientCA, for errors; "" means --tls-client-ca.
	ClientCAFlag string
	// Certificate, if set, makes the certificate of a connection if Cert is "".
	Certificate func() (*tls.Certificate, error)
	// Clients, if set, may change which clients a connection accepts, but not what the settings point to.
	Clients func(*tls.Config)
	Log     *slog.Logger
}

// Config reads the files, and returns the settings of TLS; nil for plaintext. The files are read again for each connection, so that they can
// be rotated: they are small, and clients connect seldom. What cannot be read leaves the last ones in use.
func (s ServerTLS) Config() (*tls.Config, error) {
	if s.Cert == "" && s.Key == "" && s.Certificate == nil {
		if s.ClientCA != "" {
			return nil, fmt.Errorf("%s needs --tls-cert and --tls-key", s.clientCA())
		}
		return nil, nil
	}
	first, err := s.read()
	if err != nil {
		return nil, err
	}
	var last atomic.Pointer[tls.Config]
	last.Store(first)
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conf, err := s.read()
		if err != nil {
			s.Log.Error("TLS files cannot be read; the last ones stay in use", "err", err)
			conf = last.Load()
		}
		last.Store(conf)
		return s.complete(conf.Clone())
	}}, nil
}

func (s ServerTLS) clientCA() string { return cmp.Or(s.ClientCAFlag, "--tls-client-ca") }

// complete adds to the settings of a connection what is in no file.
func (s ServerTLS) complete(conf *tls.Config) (*tls.Config, error) {
	if conf.Certificates == nil {
		made, err := s.Certificate()
		if err != nil {
			return nil, err
		}
		conf.Certificates = []tls.Certificate{*made}
	}
	if s.Clients != nil {
		s.Clients(conf)
	}
	return conf, nil
}

// read reads the files.
func (s ServerTLS) read() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if s.Cert != "" || s.Key != "" {
		pair, err := KeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	if s.ClientCA != "" {
		pool, err := CertPool(s.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.clientCA(), err)
		}
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, pool
	}
	return conf, nil
}
