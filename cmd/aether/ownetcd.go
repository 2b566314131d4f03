package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/embeddedetcd"
	"github.com/aether-federation/aether/registry/etcd"
)

// ownEtcd is the region's own etcd: one that runs elsewhere, or an embedded one.
type ownEtcd struct {
	client *etcd.Client
	// server is nil where the etcd runs elsewhere.
	server *embeddedetcd.Server
}

// ownEtcdName is what people are told of the own etcd.
func ownEtcdName(c config.Registrar) string {
	if c.Embedded() {
		return "the embedded etcd at " + c.EmbeddedEtcdClientURL
	}
	return "the own etcd at " + strings.Join(c.EtcdEndpoints, ",")
}

// openEtcd returns the own etcd once it answers.
func openEtcd(ctx context.Context, c config.Registrar, log *slog.Logger) (*ownEtcd, error) {
	own := &ownEtcd{}
	endpoints := c.EtcdEndpoints
	if c.Embedded() {
		server, err := embeddedetcd.Start(ctx, embeddedetcd.Config{Dir: c.DataDir, ClientURL: c.EmbeddedEtcdClientURL, Log: log})
		if err != nil {
			return nil, err
		}
		own.server, endpoints = server, []string{server.Endpoint()}
		log.Info("embedded etcd serves", "endpoint", server.Endpoint(), "data", c.DataDir)
	}
	err := own.dial(ctx, c, endpoints, log)
	if err == nil && c.Embedded() {
		err = own.checkRegion(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(err, own.close())
	}
	return own, nil
}

// checkRegion refuses data that another region's registrar has written: it would be
// served as that region's for ever, and nobody would keep it.
func (o *ownEtcd) checkRegion(ctx context.Context, c config.Registrar) error {
	other, err := etcd.OtherOwner(ctx, o.client, c.Region)
	if err != nil || other == "" {
		return err
	}
	return fmt.Errorf("the data in %s is that of region %s, and this is region %s: start it with --region %s, or give this region another --data-dir", c.DataDir, other, c.Region, other)
}

func (o *ownEtcd) dial(ctx context.Context, c config.Registrar, endpoints []string, log *slog.Logger) error {
	tls, err := c.EtcdTLS(log)
	if err != nil {
		return err
	}
	password, err := c.EtcdPassword(log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.EtcdStartTimeout)
	defer cancel()
	client, id, err := etcd.Dial(ctx, etcd.DialConfig{
		Endpoints: endpoints, TLSNow: tls, Username: c.EtcdUser, PasswordNow: password, Log: log,
	})
	if err != nil {
		return fmt.Errorf("reach the own etcd within %v: %w; check --etcd-endpoints", c.EtcdStartTimeout, err)
	}
	o.client = client
	log.Info("etcd answers", "endpoints", endpoints, "store", id)
	return nil
}

// failed tells when an embedded etcd has ended by itself.
func (o *ownEtcd) failed() <-chan error {
	if o.server == nil {
		return nil
	}
	return o.server.Err()
}

func (o *ownEtcd) close() error {
	var errs []error
	if o.client != nil {
		errs = append(errs, o.client.Close())
	}
	if o.server != nil {
		errs = append(errs, o.server.Stop())
	}
	return errors.Join(errs...)
}
