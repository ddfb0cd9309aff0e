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

// Condition is a prerequisite for writing a bootstrap.
type Condition struct {
	// Name is the configured name of the condition.
	Name string
	// Missing returns nil once the condition holds, and otherwise the reason. It must return soon.
	Missing func(context.Context) error
}

// waitInterval is how often conditions are checked.
const waitInterval = 100 * time.Millisecond

// Wait returns once all conditions hold at the same time. It calls report, unless nil, once for each condition that does
// not hold, with the reason, and once with nil when it then holds. If ctx ends first, the error contains the reasons of all
// missing conditions.
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
				if _, reported := waited[c.Name]; !reported || err == nil {
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

// FileThere is the condition that a file of any type is at path; with content, that it is a regular file and not empty.
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
			return fmt.Errorf("%s is not a regular file", path)
		case info.Size() == 0:
			return fmt.Errorf("%s is empty", path)
		}
		file, err := os.Open(path) // checks the permission to read
		if err != nil {
			return err
		}
		return file.Close()
	}}
}

// SocketThere is the condition that a server accepts connections on the Unix socket at path.
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
