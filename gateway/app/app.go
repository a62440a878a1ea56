// Package app composes the gateway. It must stay usable twice in one process: no globals, no environment.
package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
	"github.com/kubebyon/kubebyon/gateway/internal/audit"
	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
	"github.com/kubebyon/kubebyon/gateway/internal/httpapi"
	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/gateway/internal/mail"
	"github.com/kubebyon/kubebyon/gateway/internal/mirror"
	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	"github.com/kubebyon/kubebyon/gateway/internal/ratelimit"
	"github.com/kubebyon/kubebyon/gateway/internal/secondfactor"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/lifecycle"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/process"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// drainTime is how long requests under way may take once the process is told to stop.
const drainTime = 15 * time.Second

// Deps come from whoever composes the gateway. What is nil Run makes by itself.
type Deps struct {
	Log      *slog.Logger
	NATS     *nats.Conn    // not closed by Run
	Pool     *pgxpool.Pool // not closed by Run
	Listener net.Listener  // closed by Run
	TLS      net.Listener  // the one for KUBEBYON_HTTPS_ADDR; closed by Run

	Now           func() time.Time        // the clock of captchas, failed log-ins, second factors and rate limits
	CaptchaDigits func(length int) []byte // the answers to captchas
	MailRoots     *x509.CertPool          // who may sign the mail server's certificate; nil: whom the system trusts
	Certificate   time.Duration           // how often the certificate is looked at; 0: as each kind of it needs
}

// Main is the process; it gives the exit status.
func Main(ctx context.Context, args []string, lookup func(string) (string, bool), stderr io.Writer) int {
	return process.Main(ctx, process.Process[Config]{
		Name: "kubebyon-gateway", Load: LoadConfig,
		Run: func(ctx context.Context, cfg Config, log *slog.Logger) error { return Run(ctx, cfg, Deps{Log: log}) },
	}, args, lookup, stderr)
}

// Run serves until ctx ends, then lets requests finish. It answers from the start, while PostgreSQL and NATS are
// waited for. It fails when the address cannot be listened on or the database cannot be migrated.
func Run(ctx context.Context, cfg Config, deps Deps) error {
	log := deps.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	listener := deps.Listener
	if listener == nil {
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", string(cfg.HTTPAddr)); err != nil {
			return fmt.Errorf("KUBEBYON_HTTP_ADDR: %w", err)
		}
	}
	secure, err := newHTTPS(ctx, log, cfg, deps)
	if err != nil {
		_ = listener.Close()
		return err
	}
	files, err := mirror.Open(cfg.MirrorDir, log)
	if err != nil {
		_ = listener.Close()
		secure.close()
		return fmt.Errorf("KUBEBYON_MIRROR_DIR: %w", err)
	}
	defer func() { _ = files.Close() }()
	provider := cfg.openID()
	if provider != nil {
		defer provider.Close()
	}
	edge, err := newEdge(log, cfg, deps, files, provider)
	if err != nil {
		_ = listener.Close()
		secure.close()
		return err
	}
	// Requests under way still need PostgreSQL and NATS after ctx has ended.
	drained := make(chan struct{})
	return lifecycle.Run(ctx,
		lifecycle.Part{Name: "http", Run: func(ctx context.Context) error {
			defer close(drained)
			return lifecycle.Run(ctx,
				lifecycle.Part{Name: "plain", Run: func(ctx context.Context) error { return serve(ctx, log, listener, edge.Handler(), nil) }},
				lifecycle.Part{Name: "tls", Run: func(ctx context.Context) error { return secure.serve(ctx, log, edge.Handler()) }},
			)
		}},
		lifecycle.Part{Name: "certificate", Run: secure.watch},
		lifecycle.Part{Name: "mirror", Run: files.Run},
		lifecycle.Part{Name: "identity", Run: func(ctx context.Context) error { return identity(ctx, log, cfg, deps, listener, secure, edge, drained) }},
		lifecycle.Part{Name: "services", Run: func(ctx context.Context) error { return services(ctx, log, cfg, deps.NATS, edge, drained) }},
	)
}

// newEdge makes what answers from the start.
func newEdge(log *slog.Logger, cfg Config, deps Deps, files *mirror.Mirror, provider *openid.Client) (*httpapi.Server, error) {
	now := deps.Now
	if now == nil {
		now = time.Now
	}
	api, err := ratelimit.NewLocal(cfg.APILimit.quota(), now)
	if err != nil {
		return nil, fmt.Errorf("KUBEBYON_API_RATE_LIMIT_*: %w", err)
	}
	join, err := ratelimit.NewLocal(cfg.JoinLimit.quota(), now)
	if err != nil {
		return nil, fmt.Errorf("KUBEBYON_JOIN_RATE_LIMIT_*: %w", err)
	}
	lookup, err := ratelimit.NewLocal(lookups, now)
	if err != nil {
		return nil, err
	}
	origins := make([]string, 0, len(cfg.CORSAllowedOrigins))
	for _, origin := range cfg.CORSAllowedOrigins {
		origins = append(origins, string(origin))
	}
	return httpapi.New(httpapi.Options{Log: log, Mirror: files, SecureCookie: cfg.SessionCookieSecure, Domain: string(cfg.ConsoleDomain), OpenID: provider, Origins: origins,
		Proxies: clientaddr.Trust(cfg.TrustedProxies), API: api, Join: join, Lookup: lookup}), nil
}

// serve speaks TLS where config is given.
func serve(ctx context.Context, log *slog.Logger, listener net.Listener, handler http.Handler, config *tls.Config) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute, // a download moves its own on
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		TLSConfig:         config,
	}
	accept := server.Serve
	if config == nil {
		log.InfoContext(ctx, "http listening", slog.String("addr", listener.Addr().String()))
	} else {
		accept = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
		log.InfoContext(ctx, "https listening", slog.String("addr", listener.Addr().String()))
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		err := server.Shutdown(bounded)
		if err != nil {
			_ = server.Close()
			log.Warn("requests cut off at stop", slog.Any("error", err))
		}
		stopped <- nil
	}()
	if err := accept(listener); !errors.Is(err, http.ErrServerClosed) {
		return err // the failure ends ctx, and with it the goroutine above
	}
	return <-stopped
}

// identity brings up what stands on PostgreSQL, and makes the first administrator or the link for making one.
func identity(ctx context.Context, log *slog.Logger, cfg Config, deps Deps, listener net.Listener, secure *https, edge *httpapi.Server, drained <-chan struct{}) error {
	pool := deps.Pool
	if pool == nil {
		made, err := postgres.Open(ctx, string(cfg.DatabaseDSN.Secret), log)
		if err != nil {
			return ended(ctx, err)
		}
		defer made.Close()
		pool = made
	}
	if err := postgres.Migrate(ctx, pool, "gateway", migrations.FS); err != nil {
		return ended(ctx, err)
	}
	// Half of the cores, so that log-ins never take the whole machine.
	hasher, err := account.NewHasher(max(1, runtime.NumCPU()/2), 5*time.Second)
	if err != nil {
		return err
	}
	now, digits := deps.Now, deps.CaptchaDigits
	if now == nil {
		now = time.Now
	}
	if digits == nil {
		digits = captcha.RandomDigits
	}
	rows := store.NewStore(pool)
	tries := rows.Tries(deps.Now) // without one: the database's clock, which all replicas share
	accounts := account.NewService(rows, hasher, time.Now)
	wishes := settings.NewService(rows, cfg.keys)
	if err := patiently(ctx, log, func() error { return firstAdmin(ctx, log, cfg, accounts, wishes, listener) }); err != nil {
		return ended(ctx, err)
	}
	mailer := mail.New(mail.Options{Log: log, Settings: wishes, Roots: deps.MailRoots})
	outbox := account.NewOutbox(mailer, log)
	captchas := captcha.NewService(rows, digits, now)
	rules := policies{wishes}
	gate := httpapi.CodeGate{Captchas: captchas, Limit: ratelimit.NewShared(cfg.AuthLimit.quota("code"), tries)}
	edge.AttachIdentity(httpapi.Identity{
		Accounts: accounts, Directory: account.NewDirectory(rows), OpenID: openid.NewAccounts(rows, time.Now), Sessions: session.NewService(rows, time.Now), Tokens: apitoken.NewService(rows, time.Now),
		Users: account.NewUsers(rows, time.Now), Settings: wishes, Mail: mailer, Database: rows,
		Audit: audit.NewTrail(rows, log), Captchas: captchas,
		Attempts: attempt.NewService(rows, now), SecondFactors: secondfactor.NewService(rows, cfg.keys, now),
		Repeats:   idempotency.NewService(rows.Keys(deps.Now), cfg.keys), // by the clock that tries has
		AuthLimit: ratelimit.NewShared(cfg.AuthLimit.quota("auth"), tries), LogInLimit: ratelimit.NewShared(cfg.AuthLimit.quota("login"), tries),
		Registration: account.NewRegistration(rows, hasher, rules, outbox, gate, now),
		Passwords:    account.NewPasswords(rows, hasher, rules, outbox, now),
		Invitations:  account.NewInvitations(rows, rules, outbox, now),
	})
	log.InfoContext(ctx, "identity ready", slog.String("driver", "postgres"))
	// Requests under way may still ask for mail: it is sent until they are done, and what is left then.
	serving, served := context.WithCancel(context.WithoutCancel(ctx))
	defer served()
	return lifecycle.Run(serving,
		lifecycle.Part{Name: "outbox", Run: func(ctx context.Context) error {
			defer served()
			handing, stop := context.WithCancel(ctx)
			defer stop()
			handed := make(chan struct{})
			go func() { defer close(handed); outbox.Run(handing) }()
			<-drained
			stop()
			<-handed // the mailer stops after it
			return nil
		}},
		lifecycle.Part{Name: "mail", Run: mailer.Run},
		lifecycle.Part{Name: "certificate", Run: func(failed context.Context) error {
			ordering, stop := context.WithCancel(ctx) // which ends with ctx, while requests are still under way
			defer stop()
			defer context.AfterFunc(failed, stop)()
			return secure.order(ordering, rows)
		}},
	)
}

// policies reads what registration depends on from the settings.
type policies struct{ wishes *settings.Service }

// Policy implements account.Policies.
func (p policies) Policy(ctx context.Context) (account.Policy, error) {
	now, err := p.wishes.Read(ctx)
	return account.Policy{Registration: account.Mode(now.RegistrationMode), PublicBaseURL: now.PublicBaseURL, Mail: now.Mail != nil}, err
}

func firstAdmin(ctx context.Context, log *slog.Logger, cfg Config, accounts *account.Service, wishes *settings.Service, listener net.Listener) error {
	if cfg.adminPassword != "" {
		made, err := accounts.EnsureAdmin(ctx, cfg.AdminEmail, string(cfg.adminPassword))
		if made {
			log.InfoContext(ctx, "first administrator made", slog.String("email", cfg.AdminEmail))
		}
		return err
	}
	token, err := accounts.NewSetupToken(ctx)
	if err != nil || token == "" {
		return err
	}
	now, err := wishes.Read(ctx)
	if err != nil {
		return err
	}
	base := now.PublicBaseURL
	if base == "" {
		base = localURL(listener.Addr())
	}
	log.WarnContext(ctx, "there is no account yet: open the link once, within 24 hours, to make the first administrator",
		slog.String("link", base+"/setup#token="+token))
	return nil
}

// localURL is where this machine reaches a listener.
func localURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}

func services(ctx context.Context, log *slog.Logger, cfg Config, conn *nats.Conn, edge *httpapi.Server, drained <-chan struct{}) error {
	if conn == nil {
		made, err := rpc.Connect(ctx, cfg.NATS, "kubebyon-gateway", log)
		if err != nil {
			return ended(ctx, err)
		}
		defer made.Close()
		conn = made
	}
	edge.AttachServices(httpapi.NewServices(conn))
	<-drained
	return nil
}

// patiently repeats do while the database is away.
func patiently(ctx context.Context, log *slog.Logger, do func() error) error {
	for {
		err := do()
		if !fault.Is(err, fault.Unavailable) {
			return err
		}
		log.WarnContext(ctx, "database away, trying again", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// ended makes the end of ctx no failure.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
