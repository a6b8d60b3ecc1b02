// The handshake of a control connection: bytes in, bytes out. It waits for nothing.
//
//   connector                           listener
//      hello(nonce C)          ->
//                              <-          hello(nonce L)
//      proof(connector)        ->
//                              <-          proof(listener)
//
// Every message is one HandshakeMessage of 48 bytes, in this version and all others, so that sides
// of different versions can tell each other so. Instead of its next message a side can send a
// refusal, which names the reason. A proof is HMAC-SHA256(secret, label of the role | both hellos):
// it is fresh through both nonces, and the label keeps one side's proof from being played back as
// the other's. The connector proves first, so that a stranger who connects gets nothing to try
// guesses on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

enum class HandshakeRole : uint8_t { kConnector, kListener };

enum class Refusal : uint32_t {
  kNone = 0,
  kNotAPeer = 1,      // the bytes are no handshake message
  kWrongVersion = 2,  // the refusing side's version stands in the message's header
  kWrongSecret = 3,
  kTooSlow = 4,  // the handshake took longer than a listener waits for a stranger
  kCrowded = 5,  // too many handshakes were pending
};

enum class HandshakeKind : uint16_t { kHello = 1, kProof = 2, kRefusal = 3 };

inline constexpr size_t kHandshakeMessageBytes = 48;
inline constexpr size_t kHandshakeBodyBytes = 32;
inline constexpr std::string_view kHandshakeMagic = "VERBENA\n";

// The layout, little-endian: magic [8], version u16, kind u16, refusal u32, body [32].
struct HandshakeMessage {
  uint16_t version = kControlProtocolVersion;
  HandshakeKind kind = HandshakeKind::kHello;
  Refusal refusal = Refusal::kNone;
  std::array<std::byte, kHandshakeBodyBytes>
      body{};  // nonce, proof, or a refusal's reason in words
};
using HandshakeBytes = std::array<std::byte, kHandshakeMessageBytes>;

HandshakeBytes encode_handshake(const HandshakeMessage& message);
// False where the magic is not there. Version, kind and refusal are taken as they are.
bool decode_handshake(const HandshakeBytes& bytes, HandshakeMessage* message);
// The proof of `role` that it knows the secret.
std::array<std::byte, kHandshakeBodyBytes> handshake_proof(const JobSecret& secret,
                                                           HandshakeRole role,
                                                           const HandshakeBytes& connector_hello,
                                                           const HandshakeBytes& listener_hello);

// One side of one handshake.
class Handshake {
 public:
  enum class State {
    kInProgress,
    kDone,           // both sides proved to know the secret
    kRefused,        // by this side: send output(), then close
    kRefusedByPeer,  // close
  };

  // The secret must outlive the handshake. `version` differs from this library's only in tests.
  Handshake(HandshakeRole role, const JobSecret& secret,
            uint16_t version = kControlProtocolVersion);

  State state() const { return state_; }

  // How many bytes receive() takes now. Not more than the peer's next message: what follows its
  // last one are frames.
  size_t wanted_bytes() const;
  // Takes bytes from the peer, at most wanted_bytes(). Refuses as soon as the first bytes cannot be
  // a peer's.
  void receive(std::span<const std::byte> bytes);

  // Bytes to send now; sent(n) removes the first n of them.
  std::span<const std::byte> output() const;
  void sent(size_t bytes);

  // Refuses from outside, because the time or the place for this handshake is up.
  void refuse(Refusal refusal);

  // Why the handshake failed, for the side that this is: "peer" names the other one.
  Status failure(const std::string& peer) const;

 private:
  void send(const HandshakeBytes& message);
  void send_proof();
  void take_message();
  void take_hello();
  void take_proof(const HandshakeMessage& message);

  HandshakeRole role_;
  const JobSecret* secret_;
  uint16_t version_;
  State state_ = State::kInProgress;
  Refusal refusal_ = Refusal::kNone;
  uint16_t peer_version_ = 0;
  bool peer_said_hello_ = false;

  HandshakeBytes own_hello_{};
  HandshakeBytes peer_hello_{};
  HandshakeBytes input_{};
  size_t input_bytes_ = 0;
  std::array<std::byte, 2 * kHandshakeMessageBytes> output_{};
  size_t output_bytes_ = 0;
};

// Sends what `handshake` has to say over a non-blocking socket, as far as it takes it; false where
// the connection broke.
bool send_handshake(int socket, Handshake& handshake);

}  // namespace verbena
