#include "src/control/tls_stream.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/base/assert.h"

namespace verbena {

namespace {

// What the key is called on the wire, and what it is derived with: with another version of the
// protocol, and with other uses of the secret, it has nothing in common.
constexpr std::string_view kKeyName = "verbena control connection 2";
static_assert(kControlProtocolVersion == 2, "its key has the version in its name");

// TLS_AES_128_GCM_SHA256. The key's hash is its own: SHA-256.
constexpr std::array<unsigned char, 2> kCipherSuite = {0x13, 0x01};
constexpr char kCipherSuiteName[] = "TLS_AES_128_GCM_SHA256";
// The first one costs least, the second one is what FIPS 140 may leave.
constexpr char kGroups[] = "X25519:P-256";
constexpr char kApprovedGroup[] = "P-256";

// The first thing that went wrong; the others are its consequences.
std::string take_openssl_error(int* reason = nullptr) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (reason != nullptr) *reason = ERR_GET_REASON(error);
  const char* const words = error != 0 ? ERR_reason_error_string(error) : nullptr;
  return words != nullptr ? words : "no reason given";
}

}  // namespace

struct TlsStream::Callbacks {
  static TlsStream& of(BIO* bio) { return *static_cast<TlsStream*>(BIO_get_data(bio)); }
  static TlsStream& of(SSL* ssl) { return *static_cast<TlsStream*>(SSL_get_app_data(ssl)); }

  // OpenSSL's own socket BIO would raise SIGPIPE, and what the end of the stream means is decided
  // here: for OpenSSL it is that nothing more has come.
  static int read(BIO* bio, char* to, int size) {
    TlsStream& stream = of(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got = -1;
    errno = EAGAIN;
    if (stream.may_read_) {
      do {
        got = recv(stream.socket_, to, static_cast<size_t>(size), MSG_DONTWAIT);
      } while (got < 0 && errno == EINTR);
    }
    if (got > 0) return static_cast<int>(got);
    if (got == 0) stream.ended_ = true;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      stream.ended_ = true;
      stream.system_error_ = errno;
    }
    BIO_set_retry_read(bio);
    return -1;
  }

  static int write(BIO* bio, const char* from, int size) {
    TlsStream& stream = of(bio);
    std::vector<std::byte>& output = stream.output_;
    output.insert(output.end(), stream.preface_.begin(), stream.preface_.end());
    stream.preface_.clear();
    const auto bytes = std::as_bytes(std::span(from, static_cast<size_t>(size)));
    output.insert(output.end(), bytes.begin(), bytes.end());
    return size;
  }

  static long control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static SSL_SESSION* session_with_key(SSL* ssl) {
    const TlsStream& stream = of(ssl);
    SSL_SESSION* const session = SSL_SESSION_new();
    if (session != nullptr &&
        SSL_SESSION_set1_master_key(session, stream.key_.data(), stream.key_.size()) == 1 &&
        SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipherSuite.data())) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
      return session;
    }
    SSL_SESSION_free(session);
    return nullptr;
  }

  // The connector's side.
  static int use_key(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** name,
                     size_t* name_size, SSL_SESSION** session) {
    *name = reinterpret_cast<const unsigned char*>(kKeyName.data());
    *name_size = kKeyName.size();
    *session = session_with_key(ssl);
    return *session != nullptr ? 1 : 0;
  }

  // The listener's side. Without a session it goes on, and then fails for want of a certificate.
  static int find_key(SSL* ssl, const unsigned char* name, size_t name_size,
                      SSL_SESSION** session) {
    const bool known = std::string_view(reinterpret_cast<const char*>(name), name_size) == kKeyName;
    *session = known ? session_with_key(ssl) : nullptr;
    return 1;
  }

  // Whoever shows a certificate instead of knowing the key is an impostor.
  static int refuse_certificate(int /*verified*/, X509_STORE_CTX* /*certificates*/) { return 0; }

  static BIO_METHOD* make_bio_method() {
    BIO_METHOD* const method =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "verbena control connection");
    if (method != nullptr) {
      BIO_meth_set_read(method, read);
      BIO_meth_set_write(method, write);
      BIO_meth_set_ctrl(method, control);
    }
    return method;
  }

  // What all connections of the process share; it holds no key, and lives until the process ends.
  struct Shared {
    SSL_CTX* context = nullptr;
    BIO_METHOD* bio_method = nullptr;
    std::string error;  // why they are not there
  };

  static Shared make_shared() {
    // Otherwise exit() takes OpenSSL apart under threads that still have connections. Where the
    // application has initialized OpenSSL before, its choice holds.
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
    ERR_clear_error();
    Shared shared;
    shared.bio_method = make_bio_method();
    shared.context = SSL_CTX_new(TLS_method());
    if (shared.bio_method == nullptr || shared.context == nullptr || !configure(shared.context)) {
      shared.error = take_openssl_error();
    }
    return shared;
  }

  // All that openssl.cnf may have said about TLS is said anew: it is meant for other programs, and
  // both sides have to agree.
  static bool configure(SSL_CTX* context) {
    SSL_CTX_clear_options(context, SSL_CTX_get_options(context));
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_security_level(context, 2);
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_block_padding(context, 0);
    SSL_CTX_set_psk_use_session_callback(context, use_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    return SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context, kCipherSuiteName) == 1 &&
           (SSL_CTX_set1_groups_list(context, kGroups) == 1 ||
            SSL_CTX_set1_groups_list(context, kApprovedGroup) == 1) &&
           SSL_CTX_set1_sigalgs_list(context, "ECDSA+SHA256") == 1 &&
           SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1;
  }

  static const Shared& shared() {
    // Never destroyed, for the same reason.
    static const Shared& made = *new Shared(make_shared());
    return made;
  }
};

Status TlsStream::prepare() {
  const Callbacks::Shared& shared = Callbacks::shared();
  if (shared.error.empty()) return Status::ok_status();
  return Status(StatusCode::kUnavailable,
                fmt::format("OpenSSL cannot set up TLS 1.3 with {} and one of {}: {}; check its "
                            "installation and openssl.cnf",
                            kCipherSuiteName, kGroups, shared.error));
}

TlsStream::TlsStream(ControlRole role, const JobSecret& secret, int socket,
                     std::span<const std::byte> preface)
    : socket_(socket), process_(getpid()), preface_(preface.begin(), preface.end()) {
  const Callbacks::Shared& shared = Callbacks::shared();
  VERBENA_ASSERT(shared.context != nullptr);
  size_t key_bytes = 0;
  const auto unsigned_bytes = [](std::string_view text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  };
  // Only a lack of memory, or an installation that came apart, makes these fail.
  VERBENA_ASSERT(EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, secret.text().data(),
                           secret.text().size(), unsigned_bytes(kKeyName), kKeyName.size(),
                           key_.data(), key_.size(), &key_bytes) != nullptr);
  VERBENA_ASSERT(key_bytes == key_.size());
  ssl_.reset(SSL_new(shared.context));
  BIO* const bio = BIO_new(shared.bio_method);
  VERBENA_ASSERT(ssl_ != nullptr && bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  if (role == ControlRole::kListener) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, Callbacks::refuse_certificate);
  }
}

TlsStream::~TlsStream() { forget_key(); }

void TlsStream::forget_key() { OPENSSL_cleanse(key_.data(), key_.size()); }

TlsStream::Outcome TlsStream::outcome_of(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_NONE:
      return Outcome::kDone;
    case SSL_ERROR_WANT_READ:
      return ended_ ? Outcome::kEnded : Outcome::kWait;
    case SSL_ERROR_ZERO_RETURN:
      return Outcome::kClosed;
    default:
      break;
  }
  int reason = 0;
  failed_ = true;
  error_ = take_openssl_error(&reason);
  wrong_key_ = reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_DIGEST_CHECK_FAILED ||
               reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC ||
               reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
  return Outcome::kFailed;
}

TlsStream::Outcome TlsStream::handshake() {
  if (failed_) return Outcome::kFailed;
  ERR_clear_error();
  const Outcome outcome = outcome_of(SSL_do_handshake(ssl_.get()));
  if (outcome != Outcome::kDone) return outcome;
  // For OpenSSL, who shares a key resumes a session. A stranger may come without one, where
  // openssl.cnf has given every program a certificate.
  if (SSL_session_reused(ssl_.get()) != 1) {
    failed_ = true;
    wrong_key_ = true;
    error_ = "no pre-shared key was used";
    return Outcome::kFailed;
  }
  established_ = true;
  forget_key();
  return outcome;
}

TlsStream::Outcome TlsStream::read(std::span<std::byte> to, size_t* got) {
  if (failed_) return Outcome::kFailed;
  ERR_clear_error();
  return outcome_of(SSL_read_ex(ssl_.get(), to.data(), to.size(), got));
}

TlsStream::Outcome TlsStream::write(std::span<const std::byte> bytes) {
  VERBENA_ASSERT(bytes.size() <= kMaxRecordBytes);
  if (failed_) return Outcome::kFailed;
  ERR_clear_error();
  size_t written = 0;
  const Outcome outcome =
      outcome_of(SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written));
  VERBENA_ASSERT(outcome != Outcome::kDone || written == bytes.size());
  return outcome;
}

void TlsStream::close_notify() {
  // After part of a record, an alert would not be read as one.
  if (!established_ || failed_ || !all_sent() || process_ != getpid()) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
  flush();
}

bool TlsStream::flush() {
  while (sent_bytes_ < output_.size()) {
    const ssize_t sent = send(socket_, output_.data() + sent_bytes_, output_.size() - sent_bytes_,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (sent < 0) {
      system_error_ = errno;
      return false;
    }
    sent_bytes_ += static_cast<size_t>(sent);
  }
  sent_bytes_ = 0;
  output_.clear();
  return true;
}

}  // namespace verbena
