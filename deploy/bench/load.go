package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const loadTime = 1500 * time.Millisecond

// load is clients that ask for an address, each again as soon as it is answered.
type load struct {
	address string
	cookies []*http.Cookie
	clients int
	every   time.Duration // where it is not 0, each client asks once in that time, and not all of them together
}

// run gives what each request took, in milliseconds.
func (l load) run(ctx context.Context) (samples, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: l.clients, DisableCompression: true}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	var group sync.WaitGroup
	took, failed := make([]samples, l.clients), make([]error, l.clients)
	start := time.Now()
	for i := range l.clients {
		group.Go(func() {
			next := start.Add(l.every * time.Duration(i) / time.Duration(l.clients))
			for failed[i] == nil {
				if l.every > 0 {
					time.Sleep(time.Until(next))
					next = next.Add(l.every)
				}
				if time.Since(start) > loadTime {
					return
				}
				began := time.Now()
				_, failed[i] = get(ctx, c, l.address, l.cookies)
				took[i] = append(took[i], time.Since(began).Seconds()*1000)
			}
		})
	}
	group.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return slices.Concat(took...), nil
}

// get gives the size of an answer.
func get(ctx context.Context, c *http.Client, address string, cookies []*http.Cookie) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	for _, cookie := range cookies {
		request.AddCookie(cookie)
	}
	response, err := c.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers HTTP %d", address, response.StatusCode)
	}
	return int(n), err
}
