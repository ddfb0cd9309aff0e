package service

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"

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

// autoNumber returns the number of an address; ok is false for one that no service is given. An IPv4 address within IPv6 is that IPv4 address.
func autoNumber(address string) (number uint32, ok bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return 0, false
	}
	ip = ip.Unmap()
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
// services and documents alone, and not on the order in which they came: each service has a sequence of addresses
// to try, and the older of two keeps an address. A service keeps its own when younger ones come, and when younger
// documents name it: of a service and a document that names the address, the older has it, or the document if they
// have one age.
type allocation struct {
	claims map[Key]*claim
	// taken has who has an address, by its number; named the documents that name it, the oldest first.
	taken map[uint32]*claim
	named map[uint32][]naming
	// generation counts how often an address has got another claim.
	generation uint64
	// freed says that an address is free that claims may have tried in vain.
	freed bool
	// moved are the services whose address may have changed, lost the documents that name an address which somebody else has since
	// the last call of take, or has no more.
	moved map[Key]struct{}
	lost  map[config.Key]struct{}
}

// naming is a document that names an address.
type naming struct {
	document config.Key
	age      config.Age
}

func (n naming) compare(o naming) int {
	return cmp.Or(n.age.Compare(o.age), compareDocuments(n.document, o.document))
}

// claim is the claim of a service to an address.
type claim struct {
	key         Key
	age         config.Age
	first, step uint32
	tries       uint32 // how many addresses were tried in vain
}

func newAllocation() *allocation {
	return &allocation{
		claims: map[Key]*claim{}, taken: map[uint32]*claim{}, named: map[uint32][]naming{}, moved: map[Key]struct{}{}, lost: map[config.Key]struct{}{},
	}
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
	a.release(c)
}

// release takes the address of a claim, if it has one.
func (a *allocation) release(c *claim) {
	if number := c.number(); a.taken[number] == c {
		a.assign(number, nil)
		a.freed = true
	}
}

// assign gives an address to a claim; nil to nobody.
func (a *allocation) assign(number uint32, c *claim) {
	a.generation++
	if c == nil {
		delete(a.taken, number)
	} else {
		a.taken[number] = c
	}
	for _, n := range a.named[number] {
		a.lost[n.document] = struct{}{}
	}
}

// fix says that a document of an age names an address, which no younger service is given then; unfix, that it does so no more.
func (a *allocation) fix(document config.Key, age config.Age, address string) {
	number, ok := autoNumber(address)
	if !ok {
		return
	}
	n := naming{document, age}
	i, _ := slices.BinarySearchFunc(a.named[number], n, naming.compare)
	a.named[number] = slices.Insert(a.named[number], i, n)
	if c := a.taken[number]; c != nil && a.blocked(number, c) {
		a.assign(number, nil)
		a.place(c)
	}
}

func (a *allocation) unfix(document config.Key, age config.Age, address string) {
	number, ok := autoNumber(address)
	if !ok {
		return
	}
	i, found := slices.BinarySearchFunc(a.named[number], naming{document, age}, naming.compare)
	if !found {
		return
	}
	if a.named[number] = slices.Delete(a.named[number], i, i+1); len(a.named[number]) == 0 {
		delete(a.named, number)
	}
	a.freed = a.freed || i == 0
}

// blocked reports whether a document names an address that is not younger than a claim.
func (a *allocation) blocked(number uint32, c *claim) bool {
	named := a.named[number]
	return len(named) > 0 && named[0].age.Compare(c.age) <= 0
}

// place finds an address for a claim, and for those that it displaces.
func (a *allocation) place(c *claim) {
	for ; c.tries < autoAddresses; c.tries++ {
		number := c.number()
		has := a.taken[number]
		if a.blocked(number, c) || has != nil && !c.before(has) {
			continue
		}
		a.assign(number, c)
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
	if !a.freed {
		return
	}
	a.freed = false
	before := map[*claim]uint32{}
	for _, c := range a.claims {
		if c.tries > 0 {
			before[c] = c.tries
			if number := c.number(); a.taken[number] == c {
				a.assign(number, nil)
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

// take returns the services whose address may have changed since the last call, and the documents that name an address which may be
// another's now, or theirs again.
func (a *allocation) take() (moved map[Key]struct{}, lost map[config.Key]struct{}) {
	a.settle()
	moved, lost = a.moved, a.lost
	a.moved, a.lost = map[Key]struct{}{}, map[config.Key]struct{}{}
	return moved, lost
}

// of returns the addresses of a service; nil if it needs none, or there is none left.
func (a *allocation) of(key Key) []string {
	a.settle()
	c := a.claims[key]
	if c == nil || a.taken[c.number()] != c {
		return nil
	}
	return autoAddress(c.number())
}

// settled returns the generation of the allocation after all claims have their addresses.
func (a *allocation) settled() uint64 {
	a.settle()
	return a.generation
}

// without returns addresses that a document of an age names without those that an older service has.
func (a *allocation) without(addresses []string, age config.Age) []string {
	a.settle()
	if len(addresses) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		number, ok := autoNumber(address)
		return ok && a.taken[number] != nil && a.taken[number].age.Compare(age) < 0
	})
}
