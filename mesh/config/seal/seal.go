// Package seal encrypts what is in a Secret, for where documents are kept.
//
// It promises that nothing of a Secret but its metadata is there in the clear, and that one Secret cannot be put in the place
// of another. It does not keep keys. A Sealer may be used by several goroutines at once.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/holdfast-xds/holdfast/internal/keyfile"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// A Secret is stored without its content: type, data, stringData and immutable are one JSON text that is encrypted with
// AES-256-GCM and stands in the field "sealed", in base64: 16 bytes of salt, then nonce, cipher text and tag. The key is
// HKDF-SHA256 of the key file, with the salt and sealInfo; the document's kind, namespace and name are authenticated, so that
// one Secret cannot be put in the place of another.
const (
	sealedField = "sealed"
	sealInfo    = "holdfast-mesh secret, format 1"
	saltSize    = 16
)

// Errors of Seal and Open.
var (
	ErrNoKey    = errors.New("no Secret is stored in the clear: give --secret-key-file, the same for all that read and write (make one with: umask 077; head -c 32 /dev/urandom >FILE)")
	ErrOtherKey = errors.New("it cannot be decrypted with the keys of --secret-key-file")
)

// Sealer encrypts and decrypts Secrets.
type Sealer struct{ keys [][]byte }

// Load returns the Sealer of files of keys (package keyfile): the first encrypts, all decrypt. Without one, Seal and Open fail
// with ErrNoKey. An error names the flag.
func Load(files []string) (*Sealer, error) {
	s := &Sealer{}
	for _, file := range files {
		key, err := keyfile.Load(file)
		if err != nil {
			return nil, fmt.Errorf("--secret-key-file: %w", err)
		}
		s.keys = append(s.keys, key)
	}
	return s, nil
}

// New returns the Sealer of keys of 32 bytes.
func New(keys ...[]byte) *Sealer { return &Sealer{keys} }

// HasKey reports whether there is a key.
func (s *Sealer) HasKey() bool { return len(s.keys) > 0 }

// aead returns the cipher of one Secret.
func aead(key, salt []byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, key, salt, sealInfo, keyfile.Size)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// inClear reports whether a field of a Secret is not encrypted.
func inClear(field string) bool {
	return field == "apiVersion" || field == "kind" || field == "metadata"
}

// Seal encrypts the content of a Secret that config.Marshal wrote.
func (s *Sealer) Seal(key config.Key, document []byte) ([]byte, error) {
	if len(s.keys) == 0 {
		return nil, ErrNoKey
	}
	outer, inner, err := split(document)
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(inner)
	if err != nil {
		return nil, err
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // it never fails
	gcm, err := aead(s.keys[0], salt)
	if err != nil {
		return nil, err
	}
	if outer[sealedField], err = json.Marshal(gcm.Seal(salt, nil, content, []byte(key.String()))); err != nil {
		return nil, err
	}
	return json.Marshal(outer)
}

// Open decrypts what Seal returned. A Secret in the clear is an error: somebody else has written it.
func (s *Sealer) Open(key config.Key, document []byte) ([]byte, error) {
	opened, _, err := s.openWith(key, document)
	return opened, err
}

// Reseal encrypts with the first key what another one has encrypted; nil if the first has.
func (s *Sealer) Reseal(key config.Key, document []byte) ([]byte, error) {
	opened, with, err := s.openWith(key, document)
	if err != nil || with == 0 {
		return nil, err
	}
	return s.Seal(key, opened)
}

// openWith is Open, and returns the index of the key that has decrypted the document.
func (s *Sealer) openWith(key config.Key, document []byte) (opened []byte, with int, err error) {
	outer, inner, err := split(document)
	if err != nil {
		return nil, 0, errors.New("it is no document in JSON")
	}
	var sealed []byte
	if err := json.Unmarshal(inner[sealedField], &sealed); err != nil || len(inner) != 1 || len(sealed) < saltSize {
		return nil, 0, errors.New("it is not encrypted, and not read: write it with holdfast-mesh apply")
	}
	if len(s.keys) == 0 {
		return nil, 0, ErrNoKey
	}
	for i, of := range s.keys {
		gcm, err := aead(of, sealed[:saltSize])
		if err != nil {
			return nil, 0, err
		}
		content, err := gcm.Open(nil, nil, sealed[saltSize:], []byte(key.String()))
		if err != nil {
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(content, &fields); err != nil {
			return nil, 0, err
		}
		for name, value := range fields {
			outer[name] = value
		}
		opened, err = json.Marshal(outer)
		return opened, i, err
	}
	return nil, 0, ErrOtherKey
}

// split separates what is in the clear from what is encrypted.
func split(document []byte) (outer, inner map[string]json.RawMessage, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(document, &all); err != nil {
		return nil, nil, err
	}
	outer, inner = make(map[string]json.RawMessage), make(map[string]json.RawMessage)
	for name, value := range all {
		if inClear(name) {
			outer[name] = value
		} else {
			inner[name] = value
		}
	}
	return outer, inner, nil
}
