-- needs exact
-- The twin of aimd.py. Tempo is the clock that a hold stops.

local Tempo = {}

do

local FULL = 2^30
local END = 2^52

function Tempo.shown(anchor, virtual, share, now)
    if now <= anchor then return virtual end
    return virtual + Exact.part(now - anchor, share, FULL)
end

function Tempo.real(anchor, virtual, share, time)
    if time <= virtual then return anchor end
    local rest = (time - virtual) % share
    local wholes = (time - virtual - rest) / share * FULL
    if wholes >= END then return END end
    return math.min(END, anchor + wholes + Exact.up(Exact.part(FULL, rest, share)))
end

Tempo.FULL, Tempo.LEAST = FULL, 2^10

end

-- A law is {share, ceiling, low, progress, since, told,
-- streak, cap, cap_at}.

local Aimd = {}

do

local floor = math.floor
local ALL = 256
local KEPT = {236, 218, 192}
local NEARER = 246
local SOON = 6000000
local WORTH = 200000
local STRIDE = 2000000
local GRACE = 50000
local PLATEAU = 20000000
local STEPS = 128
local ALL_STEPS = STEPS * STEPS * STEPS
local BEYOND = 20
local CLIMB = 30000000
local START = 3000000

function Aimd.cold(least)
    return {least, 0, 0, 0, 0, 0, 0, Tempo.FULL, 0}
end

function Aimd.check(law)
    check_numbers(law, 9)
    local share, ceiling, low, progress, _, _, streak, cap = unpack(law)
    local is_sound = #law == 9
        and math.min(share, cap) >= Tempo.LEAST
        and math.max(share, cap, ceiling, low) <= Tempo.FULL
        and math.min(ceiling, low, progress, streak) >= 0
        and progress <= 4 * PLATEAU
        and streak <= #KEPT
    if not is_sound then damaged() end
end

function Aimd.present(law)
    return math.min(law[1], law[8])
end

function Aimd.refused(law, now, left, till, least)
    local share, ceiling, low, progress, since, told, streak, cap, cap_at = unpack(law)
    if left < since or (ceiling > 0 and progress == 0) then
        return {share, ceiling, low, progress, math.max(since, till), told, streak, cap, cap_at}
    end
    local met = math.min(share, cap)
    if ceiling == 0 then
        streak = #KEPT
    elseif progress < SOON then
        streak = math.min(streak + 1, #KEPT)
    else
        streak = 1
    end
    local lowered = math.max(least, floor(met * KEPT[streak] / ALL))
    if ceiling > 0 and progress < PLATEAU then met = floor(met * NEARER / ALL) end
    return {lowered, math.max(lowered, met), lowered, 0, math.max(till, now + GRACE), now, streak, cap, cap_at}
end

function Aimd.succeeded(law, now, count, left)
    local share, ceiling, low, progress, since, told, streak, cap, cap_at = unpack(law)
    if left < since then return law end
    local gain = math.max(0, math.min(now - told, count * WORTH, STRIDE))
    told = math.max(told, now)
    progress = math.max(1, math.min(progress + gain, 4 * PLATEAU))
    local grown
    if ceiling == 0 then
        grown = share + floor(share * gain / START)
    elseif progress < PLATEAU then
        local left_over = floor((PLATEAU - progress) * STEPS / PLATEAU)
        grown = ceiling - floor((ceiling - low) * (left_over * left_over * left_over) / ALL_STEPS)
    elseif progress < 2 * PLATEAU then
        local beyond = floor((progress - PLATEAU) * STEPS / PLATEAU)
        grown = ceiling + floor(floor(ceiling * BEYOND / ALL) * (beyond * beyond * beyond) / ALL_STEPS)
    else
        grown = share + floor(share * gain / CLIMB)
    end
    return {math.max(share, math.min(grown, cap)), ceiling, low, progress, since, told, streak, cap, cap_at}
end

function Aimd.stated(law, cap, left)
    if left < law[9] then return law end
    local share, ceiling, low, progress, since, told, streak = unpack(law)
    return {share, ceiling, low, progress, since, told, streak, cap, left}
end

end
