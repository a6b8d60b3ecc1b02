// What either side of a control connection sends first, in plain text: 48 bytes with the same
// layout in every version of the control protocol. So sides of different versions can report that,
// and a program that is not a peer gets a reason instead of silence.
//
//   connector                        listener
//      hello, ClientHello     ->
//                             <-         welcome, ServerHello ... Finished   or   refusal
//      Finished               ->
//                             <-         admission (one byte, encrypted)
//
// Nothing here is authenticated: altering it can only prevent a connection, as cutting the cable
// can.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "verbena/connection.h"

namespace verbena {

// Why one side ends a handshake.
enum class Refusal : uint32_t {
  kNone = 0,
  kNotAPeer = 1,      // the bytes are not the control protocol's
  kWrongVersion = 2,  // the refusing side's version stands in its preface
  kWrongSecret = 3,
  kTooSlow = 4,        // the handshake took longer than a listener waits for a stranger
  kCrowded = 5,        // too many handshakes were pending
  kAltered = 6,        // what follows the prefaces does not verify; never told to the peer
  kNoDescriptors = 7,  // the listener's process has no file descriptor left
};

// Version 1 had HMACs in prefaces of kind 2 instead of TLS, and both sides sent a hello.
enum class PrefaceKind : uint16_t { kHello = 1, kRefusal = 3, kWelcome = 4 };

inline constexpr size_t kPrefaceBytes = 48;
inline constexpr size_t kPrefaceBodyBytes = 32;
inline constexpr std::string_view kPrefaceMagic = "VERBENA\n";

// The layout, little-endian: magic [8], version u16, kind u16, refusal u32, body [32].
struct Preface {
  uint16_t version = kControlProtocolVersion;
  PrefaceKind kind = PrefaceKind::kHello;
  Refusal refusal = Refusal::kNone;
  std::array<std::byte, kPrefaceBodyBytes> body{};  // a refusal's reason in words, or zeros

  bool operator==(const Preface&) const = default;
};
using EncodedPreface = std::array<std::byte, kPrefaceBytes>;

EncodedPreface encode_preface(const Preface& preface);
EncodedPreface encode_refusal(uint16_t version, Refusal refusal);
// False where the magic is not there. Version, kind and refusal are taken as they are.
bool decode_preface(const EncodedPreface& bytes, Preface* preface);

}  // namespace verbena
