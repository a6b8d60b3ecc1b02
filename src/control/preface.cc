#include "src/control/preface.h"

#include <algorithm>
#include <cstring>

#include "src/base/wire.h"

namespace verbena {

namespace {

constexpr size_t kVersionOffset = 8;
constexpr size_t kKindOffset = 10;
constexpr size_t kRefusalOffset = 12;
constexpr size_t kBodyOffset = 16;
static_assert(kBodyOffset + kPrefaceBodyBytes == kPrefaceBytes);

// What a person sees who came with the wrong program.
std::string_view refusal_words(Refusal refusal) {
  switch (refusal) {
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
    case Refusal::kNoDescriptors:
      return "no file descriptors left\r\n";
    case Refusal::kNone:
    case Refusal::kAltered:
      return "";
  }
  return "";
}

}  // namespace

EncodedPreface encode_preface(const Preface& preface) {
  EncodedPreface bytes{};
  std::memcpy(bytes.data(), kPrefaceMagic.data(), kPrefaceMagic.size());
  store_little_endian(bytes.data() + kVersionOffset, preface.version);
  store_little_endian(bytes.data() + kKindOffset, static_cast<uint16_t>(preface.kind));
  store_little_endian(bytes.data() + kRefusalOffset, static_cast<uint32_t>(preface.refusal));
  std::copy(preface.body.begin(), preface.body.end(), bytes.begin() + kBodyOffset);
  return bytes;
}

EncodedPreface encode_refusal(uint16_t version, Refusal refusal) {
  Preface preface{
      .version = version, .kind = PrefaceKind::kRefusal, .refusal = refusal, .body = {}};
  const std::string_view words = refusal_words(refusal);
  std::memcpy(preface.body.data(), words.data(), std::min(words.size(), preface.body.size()));
  return encode_preface(preface);
}

bool decode_preface(const EncodedPreface& bytes, Preface* preface) {
  if (std::memcmp(bytes.data(), kPrefaceMagic.data(), kPrefaceMagic.size()) != 0) return false;
  preface->version = load_little_endian<uint16_t>(bytes.data() + kVersionOffset);
  preface->kind =
      static_cast<PrefaceKind>(load_little_endian<uint16_t>(bytes.data() + kKindOffset));
  preface->refusal =
      static_cast<Refusal>(load_little_endian<uint32_t>(bytes.data() + kRefusalOffset));
  std::copy(bytes.begin() + kBodyOffset, bytes.end(), preface->body.begin());
  return true;
}

}  // namespace verbena
