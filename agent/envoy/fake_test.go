package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A test starts the test binary as Envoy. Variables in the environment of the child say how it
// behaves.
const (
	fakeVar  = "ENVOY_TEST_FAKE"  // what it does, below
	adminVar = "ENVOY_TEST_ADMIN" // the path of its admin's socket
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(fakeVar); mode != "" {
		fake(mode)
	}
	goleak.VerifyTestMain(m)
}

// fake is an Envoy that behaves as the mode says. It never returns.
func fake(mode string) {
	what, arg, _ := strings.Cut(mode, "=")
	switch what {
	case "version":
		fmt.Println("\nenvoy  version: " + arg)
		os.Exit(0)
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "say":
		fmt.Print(arg)
		os.Exit(0)
	case "environ":
		fmt.Println(strings.Join(os.Environ(), "\n"))
		os.Exit(3)
	case "args":
		fmt.Println(strings.Join(os.Args[1:], " "))
		os.Exit(3)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Minute)
	case "serve":
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
		epoch := 0
		if i := slices.Index(os.Args, "--restart-epoch"); i > 0 {
			epoch, _ = strconv.Atoi(os.Args[i+1])
		}
		if i := slices.Index(os.Args, "--base-id-path"); i > 0 {
			_ = os.WriteFile(os.Args[i+1], []byte("42"), 0o600)
		}
		if epoch > 0 && arg == "once" {
			os.Exit(5)
		}
		path := os.Getenv(adminVar)
		if arg == "both end" {
			if epoch > 0 {
				pid, _ := os.ReadFile(path + ".pid")
				old, _ := strconv.Atoi(string(pid))
				for syscall.Kill(old, syscall.SIGKILL) == nil { // until the agent has reaped it
					time.Sleep(time.Millisecond)
				}
				os.Exit(5)
			}
			_ = os.WriteFile(path+".pid", []byte(strconv.Itoa(os.Getpid())), 0o600)
		}
		_ = os.Remove(path)
		lis, err := net.Listen("unix", path)
		if err != nil {
			fmt.Println(err)
			os.Exit(9)
		}
		go func() {
			_ = http.Serve(lis, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(map[string]any{
					"version": "0123/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE",
					"command_line_options": map[string]any{"restart_epoch": epoch},
				})
			}))
		}()
		fmt.Println("serving", epoch)
		for s := range signals {
			fmt.Println("got", s)
			if s == syscall.SIGTERM {
				os.Exit(0)
			}
		}
	}
	os.Exit(8)
}
