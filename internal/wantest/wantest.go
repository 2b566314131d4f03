// Package wantest gives tests slow and broken links: a TCP proxy that adds a
// round trip's time, swallows all data in silence, or resets its connections.
package wantest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/aether-federation/aether/internal/freeport"
)

// Link is a proxy before one address.
type Link struct {
	tb    testing.TB
	proxy *toxiproxy.Proxy
}

// New starts a link to upstream (host:port) with a round trip of rtt in addition
// to the real one. It ends with the test.
func New(tb testing.TB, upstream string, rtt time.Duration) *Link {
	tb.Helper()
	// Not any port: one that a link that is down can have again.
	address, err := freeport.Find()
	if err != nil {
		tb.Fatal(err)
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	l := &Link{tb: tb, proxy: toxiproxy.NewProxy(server, "link", address.String(), upstream)}
	if err := l.proxy.Start(); err != nil {
		tb.Fatalf("start link to %s: %v", upstream, err)
	}
	tb.Cleanup(l.proxy.Stop)
	if rtt > 0 {
		l.Delay(rtt)
	}
	return l
}

// Delay adds a round trip of rtt to a link that has none, until Prompt.
func (l *Link) Delay(rtt time.Duration) {
	l.tb.Helper()
	// Half of it each way.
	for _, stream := range []string{"upstream", "downstream"} {
		l.add("latency", stream, fmt.Sprintf(`"latency":%d`, rtt.Milliseconds()/2))
	}
}

// Prompt ends Delay.
func (l *Link) Prompt() {
	l.tb.Helper()
	l.remove("latency")
}

// Address is where the link listens, as host:port.
func (l *Link) Address() string { return l.proxy.Listen }

// Cut makes the link swallow everything, both ways, without a word: connections
// stay open and new ones are accepted.
func (l *Link) Cut() {
	l.tb.Helper()
	l.add("timeout", "upstream", `"timeout":0`)
	l.add("timeout", "downstream", `"timeout":0`)
}

// Heal ends Cut. The connections that hung are closed, as a network's would be
// that lost what was under way.
func (l *Link) Heal() {
	l.tb.Helper()
	l.remove("timeout")
}

// Reset closes every connection and goes on listening.
func (l *Link) Reset() {
	l.tb.Helper()
	l.proxy.Stop()
	if err := l.proxy.Start(); err != nil {
		l.tb.Fatalf("restart link: %v", err)
	}
}

// Down refuses connections until Up.
func (l *Link) Down() { l.proxy.Stop() }

// Up ends Down.
func (l *Link) Up() {
	l.tb.Helper()
	if err := l.proxy.Start(); err != nil {
		l.tb.Fatalf("restart link: %v", err)
	}
}

func (l *Link) add(kind, stream, attributes string) {
	l.tb.Helper()
	toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":{%s}}`, kind+"-"+stream, kind, stream, attributes)
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		l.tb.Fatalf("add %s to link: %v", kind, err)
	}
}

func (l *Link) remove(kind string) {
	l.tb.Helper()
	for _, stream := range []string{"upstream", "downstream"} {
		if err := l.proxy.Toxics.RemoveToxic(context.Background(), kind+"-"+stream); err != nil {
			l.tb.Fatalf("remove %s from link: %v", kind, err)
		}
	}
}
