package main

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"strconv"
	"strings"
)

// ids is a repeatable flag of users or of groups, by name or number.
type ids struct {
	target *[]uint32
	// lookup returns the number of a name.
	lookup func(name string) (string, error)
}

func users(target *[]uint32) ids {
	return ids{target, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}}
}

func groups(target *[]uint32) ids {
	return ids{target, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	}}
}

func (i ids) Set(text string) error {
	if text == "" {
		return errors.New("is empty")
	}
	digits := text
	if _, err := strconv.Atoi(text); err != nil {
		if digits, err = i.lookup(text); err != nil {
			return fmt.Errorf("%q: %s on this machine: give the number", text, unknown(err))
		}
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || id == math.MaxUint32 { // which the kernel takes for none
		return fmt.Errorf("%s: want a name, or a number from 0 to %d", text, uint32(math.MaxUint32-1))
	}
	*i.target = append(*i.target, uint32(id))
	return nil
}
func (ids) String() string { return "" }
func (ids) Type() string   { return "ID" }
func (ids) repeatable()    {}

// unknown returns why a user or a group was not found. The name is not repeated, because the error
// quotes it.
func unknown(err error) string {
	if _, ok := errors.AsType[user.UnknownUserError](err); ok {
		return "unknown user"
	}
	if _, ok := errors.AsType[user.UnknownGroupError](err); ok {
		return "unknown group"
	}
	return fmt.Sprintf("not found (%q)", err)
}

// readers is a repeatable flag of uid:USER or gid:GROUP.
type readers struct{ uids, gids ids }

func (r readers) Set(text string) error {
	switch kind, id, _ := strings.Cut(text, ":"); {
	case kind == "uid" && id != "":
		return r.uids.Set(id)
	case kind == "gid" && id != "":
		return r.gids.Set(id)
	}
	return fmt.Errorf("%q: want uid:USER or gid:GROUP, such as uid:1000 or gid:monitoring", text)
}
func (readers) String() string { return "" }
func (readers) Type() string   { return "READER" }
func (readers) repeatable()    {}
