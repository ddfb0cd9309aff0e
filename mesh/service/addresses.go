package service

import (
	"cmp"
	"hash/fnv"
	"net/netip"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// The addresses that services without one are given are numbered: number n stands for
// 240.240.x.y and for 2001:2::f0f0:xxyy, where y is from 1 to 254. There are as many as the largest
// prime number of them that fit, so that every step leads to all of them.
const (
	autoAddresses = 65011
	perOctet      = 254
)

var autoSuffix = [16]byte{0: 0x20, 1: 0x01, 3: 0x02, 12: 0xf0, 13: 0xf0}

// autoAddress returns the addresses with a number: IPv4, then IPv6.
func autoAddress(number uint32) []string {
	x, y := byte(number/perOctet), byte(number%perOctet+1)
	six := autoSuffix
	six[14], six[15] = x, y
	return []string{netip.AddrFrom4([4]byte{240, 240, x, y}).String(), netip.AddrFrom16(six).String()}
}

// autoNumber returns the number of an address; ok is false for one that no service is given.
func autoNumber(address string) (number uint32, ok bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return 0, false
	}
	b := ip.As16()
	number = uint32(b[14])*perOctet + uint32(b[15]) - 1
	return number, number < autoAddresses && b[15] != 0 && autoAddress(number)[btoi(ip.Is6())] == ip.String()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// allocation gives services addresses by a hash of their keys. Who has which address depends on the
// services alone, and not on the order in which they came: each service has a sequence of addresses
// to try, and the older of two keeps an address. A service keeps its own when younger ones come.
type allocation struct {
	claims map[Key]*claim
	// taken has who has an address, by its number; fixed counts the documents that name it.
	taken map[uint32]*claim
	fixed map[uint32]int
	// moved are the services whose address may have changed.
	moved map[Key]struct{}
}

// claim is the claim of a service to an address.
type claim struct {
	key         Key
	age         config.Age
	first, step uint32
	tries       uint32 // how many addresses were tried in vain
}

func newAllocation() *allocation {
	return &allocation{map[Key]*claim{}, map[uint32]*claim{}, map[uint32]int{}, map[Key]struct{}{}}
}

// number returns the number of the address that is tried.
func (c *claim) number() uint32 {
	return uint32((uint64(c.first) + uint64(c.tries)*uint64(c.step)) % autoAddresses)
}

// before reports whether c keeps an address that both claim.
func (c *claim) before(o *claim) bool {
	return cmp.Or(c.age.Compare(o.age), CompareKeys(c.key, o.key)) < 0
}

// set says that a service of an age needs an address.
func (a *allocation) set(key Key, age config.Age) {
	if old := a.claims[key]; old != nil {
		if old.age.Compare(age) == 0 {
			return
		}
		a.remove(key)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.String())) // a hash has no errors
	sum := h.Sum64()
	c := &claim{key: key, age: age, first: uint32(sum % autoAddresses), step: 1 + uint32(sum>>32%(autoAddresses-1))}
	a.claims[key] = c
	a.place(c)
}

// remove says that a service needs no address any more.
func (a *allocation) remove(key Key) {
	c := a.claims[key]
	if c == nil {
		return
	}
	delete(a.claims, key)
	if a.taken[c.number()] == c {
		delete(a.taken, c.number())
		a.settle()
	}
}

// fix says that a document names an address, which no service is given then; unfix, that it does so no
// more.
func (a *allocation) fix(address string) {
	number, ok := autoNumber(address)
	if !ok {
		return
	}
	a.fixed[number]++
	if c := a.taken[number]; c != nil {
		delete(a.taken, number)
		a.place(c)
	}
}

func (a *allocation) unfix(address string) {
	number, ok := autoNumber(address)
	if !ok {
		return
	}
	if a.fixed[number]--; a.fixed[number] == 0 {
		delete(a.fixed, number)
		a.settle()
	}
}

// place finds an address for a claim, and for those that it displaces.
func (a *allocation) place(c *claim) {
	for ; c.tries < autoAddresses; c.tries++ {
		number := c.number()
		if a.fixed[number] > 0 {
			continue
		}
		has := a.taken[number]
		if has != nil && !c.before(has) {
			continue
		}
		a.taken[number] = c
		a.moved[c.key] = struct{}{}
		if has == nil {
			return
		}
		c = has
	}
	a.moved[c.key] = struct{}{} // there is no address left
}

// settle places the claims again that may have a better address since one is free: those that do not
// have the first one that they tried.
func (a *allocation) settle() {
	before := map[*claim]uint32{}
	for _, c := range a.claims {
		if c.tries > 0 {
			before[c] = c.tries
			if a.taken[c.number()] == c {
				delete(a.taken, c.number())
			}
		}
	}
	moved := a.moved
	a.moved = map[Key]struct{}{}
	for c := range before {
		c.tries = 0
	}
	for c := range before {
		a.place(c)
	}
	for c, tries := range before {
		if c.tries != tries {
			moved[c.key] = struct{}{}
		}
	}
	a.moved = moved
}

// take returns the services whose address may have changed since the last call.
func (a *allocation) take() map[Key]struct{} {
	moved := a.moved
	a.moved = map[Key]struct{}{}
	return moved
}

// of returns the addresses of a service; nil if it needs none, or there is none left.
func (a *allocation) of(key Key) []string {
	c := a.claims[key]
	if c == nil || a.taken[c.number()] != c {
		return nil
	}
	return autoAddress(c.number())
}
