package app_test

// Without a provider configured; openid_test.go has one.
var usesOfOpenID = map[string]use{
	"GET /api/auth/methods": {}, "GET /api/auth/oidc/login": {}, "GET /api/auth/oidc/callback": {},
}
