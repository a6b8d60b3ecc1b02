#include "src/control/handshake.h"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/base/wire.h"

namespace verbena {

namespace {

constexpr size_t kVersionOffset = 8;
constexpr size_t kKindOffset = 10;
constexpr size_t kRefusalOffset = 12;
constexpr size_t kBodyOffset = 16;
static_assert(kBodyOffset + kHandshakeBodyBytes == kHandshakeMessageBytes);

// What a person sees who came with the wrong program.
std::string_view refusal_words(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "";
    case Refusal::kNotAPeer:
      return "not a Verbena peer\r\n";
    case Refusal::kWrongVersion:
      return "wrong protocol version\r\n";
    case Refusal::kWrongSecret:
      return "wrong secret\r\n";
    case Refusal::kTooSlow:
      return "handshake too slow\r\n";
    case Refusal::kCrowded:
      return "too many handshakes\r\n";
  }
  return "";
}

bool is_known(Refusal refusal) {
  return refusal >= Refusal::kNotAPeer && refusal <= Refusal::kCrowded;
}

[[noreturn]] void hmac_failed() {
  // No peer can be trusted without it, and there is nothing a caller could do about a crypto
  // library that is broken.
  log_error("libcrypto cannot compute HMAC-SHA256; check the OpenSSL installation");
  std::abort();
}

}  // namespace

HandshakeBytes encode_handshake(const HandshakeMessage& message) {
  HandshakeBytes bytes{};
  std::memcpy(bytes.data(), kHandshakeMagic.data(), kHandshakeMagic.size());
  store_little_endian(bytes.data() + kVersionOffset, message.version);
  store_little_endian(bytes.data() + kKindOffset, static_cast<uint16_t>(message.kind));
  store_little_endian(bytes.data() + kRefusalOffset, static_cast<uint32_t>(message.refusal));
  std::copy(message.body.begin(), message.body.end(), bytes.begin() + kBodyOffset);
  return bytes;
}

bool decode_handshake(const HandshakeBytes& bytes, HandshakeMessage* message) {
  if (std::memcmp(bytes.data(), kHandshakeMagic.data(), kHandshakeMagic.size()) != 0) return false;
  message->version = load_little_endian<uint16_t>(bytes.data() + kVersionOffset);
  message->kind =
      static_cast<HandshakeKind>(load_little_endian<uint16_t>(bytes.data() + kKindOffset));
  message->refusal =
      static_cast<Refusal>(load_little_endian<uint32_t>(bytes.data() + kRefusalOffset));
  std::copy(bytes.begin() + kBodyOffset, bytes.end(), message->body.begin());
  return true;
}

std::array<std::byte, kHandshakeBodyBytes> handshake_proof(const JobSecret& secret,
                                                           HandshakeRole role,
                                                           const HandshakeBytes& connector_hello,
                                                           const HandshakeBytes& listener_hello) {
  const std::string_view label = role == HandshakeRole::kConnector
                                     ? "verbena control connection: connector\n"
                                     : "verbena control connection: listener\n";
  const auto unsigned_bytes = [](const void* bytes) {
    return static_cast<const unsigned char*>(bytes);
  };
  std::array<std::byte, kHandshakeBodyBytes> proof{};
  size_t proof_bytes = 0;
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_end()};
  EVP_MAC* mac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  EVP_MAC_CTX* context = mac != nullptr ? EVP_MAC_CTX_new(mac) : nullptr;
  const bool computed =
      context != nullptr &&
      EVP_MAC_init(context, unsigned_bytes(secret.text().data()), secret.text().size(),
                   parameters) == 1 &&
      EVP_MAC_update(context, unsigned_bytes(label.data()), label.size()) == 1 &&
      EVP_MAC_update(context, unsigned_bytes(connector_hello.data()), connector_hello.size()) ==
          1 &&
      EVP_MAC_update(context, unsigned_bytes(listener_hello.data()), listener_hello.size()) == 1 &&
      EVP_MAC_final(context, reinterpret_cast<unsigned char*>(proof.data()), &proof_bytes,
                    proof.size()) == 1 &&
      proof_bytes == proof.size();
  EVP_MAC_CTX_free(context);
  EVP_MAC_free(mac);
  if (!computed) hmac_failed();
  return proof;
}

Handshake::Handshake(HandshakeRole role, const JobSecret& secret, uint16_t version)
    : role_(role), secret_(&secret), version_(version) {
  std::array<std::byte, kHandshakeBodyBytes> nonce;
  secure_random(nonce.data(), nonce.size());
  own_hello_ = encode_handshake({.version = version_,
                                 .kind = HandshakeKind::kHello,
                                 .refusal = Refusal::kNone,
                                 .body = nonce});
  // The listener says hello only to whom it takes for a peer.
  if (role_ == HandshakeRole::kConnector) send(own_hello_);
}

size_t Handshake::wanted_bytes() const {
  return state_ == State::kInProgress ? kHandshakeMessageBytes - input_bytes_ : 0;
}

void Handshake::receive(std::span<const std::byte> bytes) {
  VERBENA_DEBUG_ASSERT(bytes.size() <= wanted_bytes());
  bytes = bytes.first(std::min(bytes.size(), wanted_bytes()));
  if (bytes.empty()) return;
  std::copy(bytes.begin(), bytes.end(), input_.begin() + static_cast<ptrdiff_t>(input_bytes_));
  input_bytes_ += bytes.size();
  const size_t magic_bytes = std::min(input_bytes_, kHandshakeMagic.size());
  if (std::memcmp(input_.data(), kHandshakeMagic.data(), magic_bytes) != 0) {
    refuse(Refusal::kNotAPeer);
    return;
  }
  if (input_bytes_ == kHandshakeMessageBytes) {
    input_bytes_ = 0;
    take_message();
  }
}

std::span<const std::byte> Handshake::output() const {
  return std::span(output_).first(output_bytes_);
}

void Handshake::sent(size_t bytes) {
  VERBENA_DEBUG_ASSERT(bytes <= output_bytes_);
  std::memmove(output_.data(), output_.data() + bytes, output_bytes_ - bytes);
  output_bytes_ -= bytes;
}

void Handshake::send(const HandshakeBytes& message) {
  // At most a message that did not get away yet, and a refusal.
  if (output_bytes_ + message.size() > output_.size()) return;
  std::copy(message.begin(), message.end(),
            output_.begin() + static_cast<ptrdiff_t>(output_bytes_));
  output_bytes_ += message.size();
}

void Handshake::send_proof() {
  const bool connects = role_ == HandshakeRole::kConnector;
  send(encode_handshake(
      {.version = version_,
       .kind = HandshakeKind::kProof,
       .refusal = Refusal::kNone,
       .body = handshake_proof(*secret_, role_, connects ? own_hello_ : peer_hello_,
                               connects ? peer_hello_ : own_hello_)}));
}

void Handshake::refuse(Refusal refusal) {
  if (state_ != State::kInProgress) return;
  state_ = State::kRefused;
  refusal_ = refusal;
  std::array<std::byte, kHandshakeBodyBytes> body{};
  const std::string_view words = refusal_words(refusal);
  std::memcpy(body.data(), words.data(), std::min(words.size(), body.size()));
  send(encode_handshake(
      {.version = version_, .kind = HandshakeKind::kRefusal, .refusal = refusal, .body = body}));
}

void Handshake::take_message() {
  HandshakeMessage message;
  if (!decode_handshake(input_, &message)) return refuse(Refusal::kNotAPeer);
  peer_version_ = message.version;
  if (message.kind == HandshakeKind::kRefusal) {
    // A side that cannot read our version says so in a message of its own version.
    if (!is_known(message.refusal)) {
      return refuse(message.version == version_ ? Refusal::kNotAPeer : Refusal::kWrongVersion);
    }
    refusal_ = message.refusal;
    state_ = State::kRefusedByPeer;
    output_bytes_ = 0;
    return;
  }
  if (message.version != version_) return refuse(Refusal::kWrongVersion);
  const HandshakeKind expected = peer_said_hello_ ? HandshakeKind::kProof : HandshakeKind::kHello;
  if (message.kind != expected || message.refusal != Refusal::kNone) {
    return refuse(Refusal::kNotAPeer);
  }
  if (expected == HandshakeKind::kHello) {
    take_hello();
  } else {
    take_proof(message);
  }
}

void Handshake::take_hello() {
  peer_said_hello_ = true;
  peer_hello_ = input_;
  if (role_ == HandshakeRole::kListener) {
    send(own_hello_);
    return;
  }
  // An echo of our own hello, by a mirror or by a socket that connected to itself.
  if (peer_hello_ == own_hello_) return refuse(Refusal::kNotAPeer);
  send_proof();
}

void Handshake::take_proof(const HandshakeMessage& message) {
  const bool listens = role_ == HandshakeRole::kListener;
  const HandshakeBytes& connector_hello = listens ? peer_hello_ : own_hello_;
  const HandshakeBytes& listener_hello = listens ? own_hello_ : peer_hello_;
  const auto expected =
      handshake_proof(*secret_, listens ? HandshakeRole::kConnector : HandshakeRole::kListener,
                      connector_hello, listener_hello);
  if (CRYPTO_memcmp(expected.data(), message.body.data(), expected.size()) != 0) {
    return refuse(Refusal::kWrongSecret);
  }
  state_ = State::kDone;
  if (listens) send_proof();
}

Status Handshake::failure(const std::string& peer) const {
  const bool by_peer = state_ == State::kRefusedByPeer;
  switch (refusal_) {
    case Refusal::kNone:
      return Status::ok_status();
    case Refusal::kNotAPeer:
      if (by_peer) {
        return Status(StatusCode::kProtocolViolation,
                      fmt::format("{} takes this side for something that is not a Verbena peer; "
                                  "does something between the two alter the bytes?",
                                  peer));
      }
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("{} is not a Verbena peer: its bytes are not the control "
                                "protocol's; is the port in use by another program?",
                                peer));
    case Refusal::kWrongVersion:
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("wrong version: peer {} speaks version {} of the control protocol, "
                                "this is version {}; use the same Verbena on both sides",
                                peer, peer_version_, version_));
    case Refusal::kWrongSecret:
      return Status(StatusCode::kPermissionDenied,
                    by_peer ? fmt::format("wrong secret: {} has another job secret than this side; "
                                          "give both the same",
                                          peer)
                            : fmt::format("wrong secret: {} did not prove that it knows the job "
                                          "secret; give both sides the same",
                                          peer));
    case Refusal::kTooSlow:
      return Status(StatusCode::kTimeout,
                    by_peer ? fmt::format("{} gave up: this side took too long over the handshake; "
                                          "is its CPU overcommitted?",
                                          peer)
                            : fmt::format("{} did not finish the handshake in time", peer));
    case Refusal::kCrowded:
      return Status(StatusCode::kLimitExceeded,
                    by_peer ? fmt::format("{} has too many handshakes pending; try again", peer)
                            : fmt::format("{} had not finished its handshake when all places for "
                                          "pending handshakes were taken",
                                          peer));
  }
  return Status(StatusCode::kInternal, "a refusal without a reason");
}

bool send_handshake(int socket, Handshake& handshake) {
  while (!handshake.output().empty()) {
    const std::span<const std::byte> output = handshake.output();
    const ssize_t sent = ::send(socket, output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    handshake.sent(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace verbena
