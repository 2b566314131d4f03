package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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
	if err := own.dial(ctx, c, endpoints, log); err != nil {
		return nil, errors.Join(err, own.close())
	}
	return own, nil
}

func (o *ownEtcd) dial(ctx context.Context, c config.Registrar, endpoints []string, log *slog.Logger) error {
	tls, err := c.EtcdTLS(log)
	if err != nil {
		return err
	}
	password, err := c.EtcdPassword()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.EtcdStartTimeout)
	defer cancel()
	client, id, err := etcd.Dial(ctx, etcd.DialConfig{
		Endpoints: endpoints, TLS: tls, Username: c.EtcdUser, Password: password, Log: log,
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
