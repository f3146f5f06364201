-- needs exact
-- The twin of tempo.py.

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
