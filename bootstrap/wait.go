package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

// Condition is something that must be there before a bootstrap can be written.
type Condition struct {
	// Name is how it was asked for.
	Name string

	// Missing returns nil once the condition holds, and why it does not before. It must return soon.
	Missing func(context.Context) error
}

// waitInterval is how often conditions are looked at.
const waitInterval = 100 * time.Millisecond

// Wait returns when all conditions hold at once. report, unless nil, is told of each condition once when it is waited for,
// with the reason, and once when it holds after that, with nil. When ctx ends first, the error names what is missing, each
// with its reason.
func Wait(ctx context.Context, conditions []Condition, report func(name string, missing error)) error {
	retry := time.NewTicker(waitInterval)
	defer retry.Stop()
	waited := make(map[string]bool)
	for {
		var missing []error
		for _, c := range conditions {
			err := c.Missing(ctx)
			if err != nil {
				missing = append(missing, fmt.Errorf("%s: %w", c.Name, err))
			}
			if report != nil && (err != nil) != waited[c.Name] {
				if _, told := waited[c.Name]; !told || err == nil {
					report(c.Name, err)
				}
				waited[c.Name] = err != nil
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(missing...)
		case <-retry.C:
		}
	}
}

// FileThere is missing until a file, of any kind, is at path; with content, until it is a file that is not empty.
func FileThere(name, path string, content bool) Condition {
	return Condition{name, func(context.Context) error {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s does not exist", path)
		case err != nil:
			return err
		case !content:
			return nil
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is no regular file", path)
		case info.Size() == 0:
			return fmt.Errorf("%s is empty", path)
		}
		file, err := os.Open(path) // is it ours to read?
		if err != nil {
			return err
		}
		return file.Close()
	}}
}

// SocketThere is missing until somebody accepts connections on the Unix socket at path.
func SocketThere(name, path string) Condition {
	return Condition{name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	}}
}
