// Command member is a member of an etcd cluster: etcd itself, as a module, which the tests start, kill and pause.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
