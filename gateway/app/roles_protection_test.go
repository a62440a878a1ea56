package app_test

var usesOfProtection = map[string]use{
	"POST /api/auth/captcha": {},
}
