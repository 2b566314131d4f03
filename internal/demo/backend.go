package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// regionHeader names, in a backend's answers, the region that it runs in.
const regionHeader = "Aether-Demo-Region"

// ServeBackend is the service of the demo: it says which region it runs in, until
// ctx ends.
func ServeBackend(ctx context.Context, address, region string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the demo's calls: %w", err)
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(regionHeader, region)
			_, _ = io.WriteString(w, "hello from region "+region+"\n") // the caller has gone
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns by it
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the demo's calls: %w", err)
	}
	return nil
}
