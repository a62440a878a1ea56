package app_test

const (
	sessions     = "/api/auth/sessions"
	oneSession   = sessions + "/{session_id}"
	apiTokens    = "/api/auth/tokens"
	apiToken     = apiTokens + "/{api_token_id}"
	userSessions = "/api/admin/users/{user_id}/sessions"
	userTokens   = "/api/admin/users/{user_id}/tokens"
	userToken    = userTokens + "/{api_token_id}"

	bystanderID = "usr_bystanderbystanderbb"
	noSession   = "ses_zzzzzzzzzzzzzzzzzzzz"
	noToken     = "pat_zzzzzzzzzzzzzzzzzzzz"
)

var usesOfSessions = map[string]use{
	"GET " + sessions:        {who: account, inPerson: true},
	"DELETE " + sessions:     {who: account, inPerson: true, ends: true},
	"DELETE " + oneSession:   {who: account, inPerson: true, fill: noSession},
	"POST " + apiTokens:      {who: account, inPerson: true, body: `{"name":""}`},
	"GET " + apiTokens:       {who: account, inPerson: true},
	"DELETE " + apiToken:     {who: account, inPerson: true, fill: noToken},
	"DELETE " + userSessions: {who: admin, fill: bystanderID},
	"GET " + userTokens:      {who: admin, fill: bystanderID},
	"DELETE " + userTokens:   {who: admin, fill: bystanderID},
	"DELETE " + userToken:    {who: admin, fill: bystanderID + " " + noToken},
}
