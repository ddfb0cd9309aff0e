package main

import (
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

// etcdFlags adds the flags that say where etcd is.
func etcdFlags(flags *pflag.FlagSet, o *etcd.Options) {
	flags.StringSliceVar(&o.Endpoints, "etcd", nil, "`URL` of a member of the etcd that has the documents, such as https://etcd-0:2379; more than one: with commas")
	flags.StringVar(&o.Prefix, "etcd-prefix", etcd.DefaultPrefix, "`PATH` with which the keys in etcd begin")
	flags.StringVar(&o.CA, "etcd-ca", "", "PEM `FILE` of the CAs to trust for https; empty: those of the system")
	flags.StringVar(&o.Cert, "etcd-cert", "", "PEM `FILE` of a client certificate for etcd; with --etcd-key")
	flags.StringVar(&o.Key, "etcd-key", "", "PEM `FILE` of the private key of --etcd-cert")
	flags.StringVar(&o.User, "etcd-user", "", "`NAME` of a user of etcd; with --etcd-password-file")
	flags.StringVar(&o.PasswordFile, "etcd-password-file", "", "`FILE` of the password of --etcd-user")
	flags.StringArrayVar(&o.SecretKeys, "secret-key-file", nil, "`FILE` of a key of 32 bytes, mode 0600, that encrypts Secrets in etcd, where they are neither stored nor read without a key, and those of --config in --state-dir, where they are not kept without one. Of several keys, the first encrypts and all decrypt. May be repeated")
}
