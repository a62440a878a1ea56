package natsauth

// AnswerTime is for tests.
const AnswerTime = answerTime
