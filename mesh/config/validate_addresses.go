package config

import (
	"net/netip"
	"slices"
)

// automaticRanges are the prefixes of the addresses that services without one are given, as with Istio.
var automaticRanges = []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")}

// InAutomaticRange reports whether a text is an address, or a prefix of addresses, of one of the ranges from which services without an
// address are given one.
func InAutomaticRange(text string) bool {
	var prefix netip.Prefix
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap()
		prefix = netip.PrefixFrom(ip, ip.BitLen())
	} else if prefix, err = netip.ParsePrefix(text); err != nil {
		return false
	}
	return slices.ContainsFunc(automaticRanges, func(of netip.Prefix) bool { return of.Bits() <= prefix.Bits() && of.Contains(prefix.Addr()) })
}

// automaticRange warns once of the addresses at a place that are of the automatic ranges. consequence says what follows.
func (k *checker) automaticRange(at *path, addresses []string, consequence string) {
	first := slices.IndexFunc(addresses, InAutomaticRange)
	if first < 0 {
		return
	}
	more := ""
	for _, address := range addresses[first+1:] {
		if InAutomaticRange(address) {
			more = ", and others here are, too"
			break
		}
	}
	k.warnf(AutomaticRange, at, "%q is one of the addresses that services without one are given (240.240.0.0/16, 2001:2::/48)%s: %s", addresses[first], more, consequence)
}
