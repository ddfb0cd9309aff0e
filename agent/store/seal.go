package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

const KeySize = 32

// The purposes of derived keys (HKDF's info). Each format has keys of its own.
const (
	infoKeyID   = "holdfast state: key id"
	infoSealer1 = "holdfast state: records of one generation"
	infoSealer2 = "holdfast state: frames of one generation, format 2"
)

// valid panics with an error that checkConfig has ruled out: the keys have the size that the ciphers want.
func valid[T any](v T, err error) T {
	if err != nil {
		panic("store: " + err.Error())
	}
	return v
}

// keyID returns a fingerprint of a key that reveals nothing about it; zeros for no key.
func keyID(key []byte) (id [keyIDSize]byte) {
	if len(key) > 0 {
		copy(id[:], valid(hkdf.Key(sha256.New, key, nil, infoKeyID, len(id))))
	}
	return id
}

// newSealer returns the cipher of one generation, nil without a key. Its key is derived with the salt of
// the file, so that the limit of random nonces applies to one generation and not to the key's lifetime.
func newSealer(key, salt []byte, format uint32) cipher.AEAD {
	if len(key) == 0 {
		return nil
	}
	info := infoSealer2
	if format == 1 {
		info = infoSealer1
	}
	block := valid(aes.NewCipher(valid(hkdf.Key(sha256.New, key, salt, info, KeySize))))
	return valid(cipher.NewGCMWithRandomNonce(block))
}

const howToMakeAKey = "make one with: (umask 077; head -c 32 /dev/urandom >FILE)"

// keyMode returns the greatest permissions of a key file. A file of root may also be readable for a group,
// because kubelet mounts a Secret that way for a pod with a group.
func keyMode(owner, user int) fs.FileMode {
	if owner == 0 && user != 0 {
		return 0o640
	}
	return 0o600
}

// LoadKey reads a key for Config.Keys: a regular file of exactly 32 bytes that belongs to this user or root
// and that only its owner may read, or a group of root's file. path may be a symbolic link, as in a mounted
// Secret. No error quotes the content. A file system that hangs is an error after a few seconds.
func LoadKey(path string) ([]byte, error) {
	key, err := userfile.ReadChecked(path, func(info fs.FileInfo) error { return checkKeyFile(path, info) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("state key: %w: %s", err, howToMakeAKey)
	case err == nil && len(key) != KeySize:
		err = fmt.Errorf("%s: changed while it was read", path)
	}
	if err != nil {
		return nil, fmt.Errorf("state key: %w", err)
	}
	return key, nil
}

func checkKeyFile(path string, info fs.FileInfo) error {
	switch uid := userfile.Owner(info); {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file: %s", path, howToMakeAKey)
	case uid != os.Geteuid() && uid != 0:
		return fmt.Errorf("%s: belongs to uid %d: want uid %d or root", path, uid, os.Geteuid())
	case info.Mode().Perm()&^keyMode(uid, os.Geteuid()) != 0:
		return fmt.Errorf("%s: has mode %04o, so that others may read it: want 0600 or 0400 (chmod 0600 %s)", path, info.Mode().Perm(), path)
	case info.Size() > KeySize:
		return fmt.Errorf("%s: has %d bytes: want exactly %d, not encoded and without a line end; %s", path, info.Size(), KeySize, howToMakeAKey)
	case info.Size() < KeySize:
		return fmt.Errorf("%s: has %d bytes: want exactly %d; %s", path, info.Size(), KeySize, howToMakeAKey)
	}
	return nil
}
