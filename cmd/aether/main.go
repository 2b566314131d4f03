// Command aether is the whole of Aether in one binary: the registrar, its
// clients, and a demo. Its subcommands hold flags and wiring; what they do is in
// the packages that they join.
package main

import (
	"context"
	"os"
)

// version is set at build time.
var version = ""

func main() {
	os.Exit(run(context.Background(), os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
