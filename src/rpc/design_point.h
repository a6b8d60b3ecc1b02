// What a design point is: the template argument of a requester and a responder.
//
// Everything that distinguishes protocols is decided at compile time ("patterns" 4), so that no
// message passes a branch on it. A design names its two channels; the protocols of this folder, one
// file each, are such designs.
#pragma once

#include <concepts>

#include "src/channel/channel.h"
#include "src/channel/completion_mark.h"
#include "src/channel/dense_channel.h"
#include "src/channel/head_tail_mark.h"
#include "src/channel/last_bit_mark.h"
#include "src/channel/length_markers_mark.h"
#include "src/channel/write_channel.h"
#include "src/channel/write_immediate_channel.h"
#include "src/rpc/design_cost.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// Stands where a completion mark would: the completion of a WRITE_WITH_IMM tells instead.
struct ImmediateMark {};

// Stands where a completion mark would: a byte per slot in an array of its own tells instead.
struct DenseMark {};

// The channel that carries a WRITE half, and how the layout is called.
template <typename Mark>
struct WriteHalf {
  using Channel = channel::WriteChannel<Mark>;
};
template <>
struct WriteHalf<ImmediateMark> {
  using Channel = channel::WriteImmediateChannel;
};
template <>
struct WriteHalf<DenseMark> {
  using Channel = channel::DenseChannel;
};

template <typename Mark>
inline constexpr MarkLayout kLayoutOf = MarkLayout::kImmediate;
template <>
inline constexpr MarkLayout kLayoutOf<channel::LastBitMark> = MarkLayout::kLastBit;
template <>
inline constexpr MarkLayout kLayoutOf<channel::LengthMarkersMark> = MarkLayout::kLengthMarkers;
template <>
inline constexpr MarkLayout kLayoutOf<channel::HeadTailMark> = MarkLayout::kHeadTail;
template <>
inline constexpr MarkLayout kLayoutOf<DenseMark> = MarkLayout::kDense;

// A protocol with a request channel and a response channel; READ is not one.
template <typename Design>
concept ChannelPair = channel::MessageChannel<typename Design::RequestChannel> &&
    channel::MessageChannel<typename Design::ResponseChannel> &&
    std::same_as<std::remove_cv_t<decltype(Design::kProtocol)>, Protocol> &&
    std::same_as<std::remove_cv_t<decltype(Design::kLayout)>, MarkLayout> &&
    std::same_as<std::remove_cv_t<decltype(Design::kReceiveQueues)>, ReceiveQueues>;

}  // namespace verbena::rpc
