package app_test

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkGateway gives p50 and p99 in microseconds, without a session, with one, and through NATS.
func BenchmarkGateway(b *testing.B) {
	w := start(b, with("KUBEBYON_LOG_LEVEL", "info"))
	for _, c := range []struct{ name, path string }{{"healthz", "/healthz"}, {"session", "/api/auth/session"}, {"clusters", clusters}} {
		for _, clients := range []int{1, 64} {
			b.Run(c.name+"/"+map[int]string{1: "1", 64: "64"}[clients], func(b *testing.B) {
				client := &http.Client{Jar: w.browser.Jar, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
				defer client.CloseIdleConnections()
				var mu sync.Mutex
				var took []time.Duration
				work := make(chan struct{})
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						for range work {
							begin := time.Now()
							response, err := client.Get(w.url + c.path)
							if err != nil || response.StatusCode != http.StatusOK {
								b.Error(response, err)
								continue
							}
							_, _ = io.Copy(io.Discard, response.Body)
							_ = response.Body.Close()
							mu.Lock()
							took = append(took, time.Since(begin))
							mu.Unlock()
						}
					})
				}
				for b.Loop() {
					work <- struct{}{}
				}
				close(work)
				wg.Wait()
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			})
		}
	}
}
