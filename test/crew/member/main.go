// Command member is one node of a test's fleet; see package crew. Its one argument
// is its configuration, in JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/aether-federation/aether/test/crew"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("want one argument, the configuration, not %d", len(os.Args)-1)
	}
	var c crew.Config
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return crew.Run(context.Background(), c, os.Stdin, os.Stdout)
}
