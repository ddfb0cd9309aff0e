// Package etcd has the tests of holdfast-mesh with a real etcd: embedded for speed, and three members as processes of which
// one is killed, paused or has a full disk. It is a module of its own, because the main module must not have a server of etcd.
package etcd
